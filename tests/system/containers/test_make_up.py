"""`make up`: what a person sees of a start that works, and of one that cannot."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from appliance.paths import ROOT
from tests.system.containers.image_stack import BUILD_S, START_S, Stack, environment, run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = [pytest.mark.image, pytest.mark.timeout(BUILD_S + 2 * START_S)]

IMAGES = {
    "ENGINE_IMAGE": os.environ.get("ENGINE_IMAGE") or "v100-appliance:portable",
    "SIDECAR_IMAGE": os.environ.get("SIDECAR_IMAGE") or "v100-appliance:sidecar",
}


def up(stack: Stack, engine: str = "portable") -> subprocess.CompletedProcess[str]:
    """Run the script beside the stack's own compose files; the images are named, so that nothing is built."""
    folder = stack.folder / "config" / "compose"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "config" / "compose" / "up.sh", folder)
    variables = environment(COMPOSE_PROJECT_NAME=stack.project, **IMAGES)
    return run("bash", str(folder / "up.sh"), engine, env=variables, timeout=START_S, check=False)


def test_it_stays_until_the_engine_serves_and_prints_the_address(images: None, models: Path, tmp_path: Path) -> None:
    with Stack(tmp_path / "up", models) as stack:
        done = up(stack)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"http://127.0.0.1:{stack.port}/v1" in done.stdout
        assert f"http://127.0.0.1:{stack.sidecar_port}" in done.stdout
        assert "] loading for" in done.stdout
        assert stack.chat(4).status_code == 200


def test_it_says_once_why_the_engine_cannot_start(images: None, models: Path, tmp_path: Path) -> None:
    with Stack(tmp_path / "wrong", models, APPLIANCE_PROFLIE="x") as stack:
        done = up(stack)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.count('did you mean "APPLIANCE_PROFILE"') == 1
        assert stack.container("engine").status == "exited"


def test_an_unknown_engine_is_refused(images: None, models: Path, tmp_path: Path) -> None:
    with Stack(tmp_path / "unknown", models) as stack:
        done = up(stack, "v200")
        assert (done.returncode, done.stdout) == (2, "")
        assert 'no engine "v200"' in done.stderr
