"""A missing Docker or browser is told, and is no pass where it was promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import requirement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A machine with no programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for check in (requirement._docker, requirement._browser):
        check.cache_clear()
    yield monkeypatch
    for check in (requirement._docker, requirement._browser):
        check.cache_clear()


@pytest.mark.parametrize("need", ["docker", "browser"])
def test_a_missing_program_skips_and_says_which(bare: pytest.MonkeyPatch, need: requirement.Need) -> None:
    bare.delenv(requirement.PROMISE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        requirement.required(need)


@pytest.mark.parametrize("need", ["docker", "browser"])
def test_a_missing_program_that_was_promised_fails(bare: pytest.MonkeyPatch, need: requirement.Need) -> None:
    bare.setenv(requirement.PROMISE, "docker, browser")
    with pytest.raises(pytest.fail.Exception, match=f"promises {need}.*not installed"):
        requirement.required(need)


def test_a_docker_whose_daemon_is_away_is_missing(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.delenv(requirement.PROMISE, raising=False)
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(pytest.skip.Exception, match="daemon does not answer"):
        requirement.required("docker")


def test_what_is_there_is_used(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv(requirement.PROMISE, "docker,browser")
    for name in ("docker", "chromium", "chromedriver"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / name).chmod(0o755)
    requirement.required("docker")
    requirement.required("browser")
