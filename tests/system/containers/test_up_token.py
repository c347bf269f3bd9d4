"""What `make up` does with HF_TOKEN, with a stub in place of Docker."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from appliance.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "hf_of_the_shell"

DOCKER = """#!/bin/sh
{ echo "$*"; env; } >>"$SEEN"
case "$*" in
  *inspect*) echo "running 0" ;;
  *--quiet\\ engine) echo made ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script, and `bin/docker` that notes its arguments and environment."""
    script = tmp_path / "config" / "compose" / "up.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "config" / "compose" / "up.sh", script)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    return tmp_path


def up(checkout: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}",
        "SEEN": str(checkout / "seen"),
        "ENGINE_IMAGE": "engine",
        "SIDECAR_IMAGE": "sidecar",
    }
    return subprocess.run(
        ["bash", str(checkout / "config" / "compose" / "up.sh"), "v100"],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_token_of_the_shell_becomes_a_secret_file(checkout: Path) -> None:
    (checkout / "secrets").mkdir(mode=0o755)
    for token in (TOKEN, f"{TOKEN}_2"):
        done = up(checkout, HF_TOKEN=token)
        assert done.returncode == 0, done.stderr
        file = checkout / "secrets" / "hf_token"
        assert file.read_text() == f"{token}\n"
        assert file.stat().st_mode & 0o777 == 0o644, "any user id of a container reads it"
        assert file.parent.stat().st_mode & 0o077 == 0, "the machine's other users do not"
        seen = (checkout / "seen").read_text()
        assert "APPLIANCE_HF_TOKEN_FILE=./secrets/hf_token\n" in seen
        assert TOKEN not in seen.split("compose config")[1] + done.stdout + done.stderr
        (checkout / "seen").unlink()


def test_a_file_of_ones_own_is_left_alone(checkout: Path) -> None:
    (checkout / ".env").write_text("APPLIANCE_HF_TOKEN_FILE=./mine\n")
    assert up(checkout, HF_TOKEN=TOKEN).returncode == 0
    assert not (checkout / "secrets").exists()
    assert "APPLIANCE_HF_TOKEN_FILE" not in (checkout / "seen").read_text()


def test_without_a_token_nothing_is_written(checkout: Path) -> None:
    assert up(checkout).returncode == 0
    assert not (checkout / "secrets").exists()


def test_a_token_in_the_env_file_is_refused(checkout: Path) -> None:
    (checkout / ".env").write_text(f"HF_TOKEN={TOKEN}\n")
    done = up(checkout)
    assert done.returncode == 2
    assert done.stderr.startswith("up: HF_TOKEN in .env would be shown by docker inspect; put it into a file ")
    assert TOKEN not in done.stdout + done.stderr
