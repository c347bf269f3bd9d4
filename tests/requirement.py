"""What a test needs of the machine beyond Python: skipped where it is missing, failed where it was promised.

TESTS_REQUIRE=docker,browser,engine is such a promise: `make test` promises the engine and .ci/run the rest, so that
nothing is skipped there unseen. `make check` promises nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

Need = Literal["docker", "browser", "engine"]

PROMISE = "TESTS_REQUIRE"

ENGINE_PACKAGES = ("torch", "vllm", "cuda")
"""What an engine's lock installs beside the packages of the checks; `cuda` is cuda-bindings, which compiles kernels."""


def required(need: Need) -> None:
    """Skip the test, with the reason, where `need` is missing; fail it where the environment promises it."""
    checks: dict[Need, Callable[[], str | None]] = {"docker": _docker, "browser": _browser, "engine": _engine}
    missing = checks[need]()
    if missing is None:
        return
    if need in promised():
        pytest.fail(f"{PROMISE} promises {need}, but {missing}", pytrace=False)
    pytest.skip(missing)


def promised() -> frozenset[str]:
    """What the environment says is there."""
    return frozenset(filter(None, os.environ.get(PROMISE, "").replace(" ", "").split(",")))


@cache
def _docker() -> str | None:
    if shutil.which("docker") is None:
        return "Docker is not installed; .ci/docker.sh installs and starts it on Debian"
    for command, what in (
        (("docker", "info"), "the Docker daemon does not answer"),
        (("docker", "compose", "version"), "Docker has no compose plugin"),
        (("docker", "buildx", "version"), "Docker has no buildx plugin"),
    ):
        try:
            done = subprocess.run(command, capture_output=True, timeout=30, check=False)
        except subprocess.TimeoutExpired:
            return f"`{' '.join(command)}` hangs"
        if done.returncode:
            return f"{what}; .ci/docker.sh installs and starts it on Debian"
    return None


@cache
def _browser() -> str | None:
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed; Debian has chromium and chromium-driver" if absent else None


def _engine() -> str | None:
    absent = [name for name in ENGINE_PACKAGES if importlib.util.find_spec(name) is None]
    return f"no {' and no '.join(absent)} here, which come with an engine; `make test` has them" if absent else None
