"""A missing Docker, browser or engine is told, and is no pass where it was promised."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from appliance.paths import ROOT
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


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment where only torch of an engine's packages is installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "torch" else None)
    return monkeypatch


def test_without_the_packages_of_an_engine_it_says_which_are_missing(no_engine: pytest.MonkeyPatch) -> None:
    no_engine.delenv(requirement.PROMISE, raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"^no vllm and no cuda here, .*; `make test` has them$"):
        requirement.required("engine")


def test_packages_of_an_engine_that_were_promised_fail(no_engine: pytest.MonkeyPatch) -> None:
    no_engine.setenv(requirement.PROMISE, "engine")
    with pytest.raises(pytest.fail.Exception, match="promises engine, but no vllm"):
        requirement.required("engine")


def _collected(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, promise: str, module: str
) -> pytest.RunResult:
    monkeypatch.setenv(requirement.PROMISE, promise)
    hooks = "pytest_pycollect_makemodule, pytest_runtest_call, pytest_runtest_setup"
    pytester.makeconftest(f"from tests.conftest import {hooks}")
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}\nmarkers =\n    needs: as in this repository\n")
    pytester.makepyfile(module)
    return pytester.runpytest_inprocess("-rs", "-p", "no:cacheprovider", "-p", "no:xdist")


IMPORTS = "from vllm.nothing_of_that_name import X\ndef test_it(): pass"
MARKED = "import pytest\n@pytest.mark.needs('engine')\ndef test_it(): pass"
LATE = "def test_it():\n    from vllm.nothing_of_that_name import X"
FIXTURE = "import pytest\n@pytest.fixture\ndef x():\n    import vllm\ndef test_it(x): pass"


@pytest.mark.parametrize("module", [IMPORTS, MARKED, LATE, FIXTURE])
def test_a_test_that_needs_an_engine_is_skipped_with_the_reason(
    pytester: pytest.Pytester, no_engine: pytest.MonkeyPatch, module: str
) -> None:
    no_engine.setitem(sys.modules, "vllm", None)
    result = _collected(pytester, no_engine, "", module)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no vllm and no cuda here*"])


@pytest.mark.parametrize("module", [IMPORTS, MARKED, LATE, FIXTURE])
def test_a_test_that_needs_an_engine_fails_where_one_was_promised(
    pytester: pytest.Pytester, no_engine: pytest.MonkeyPatch, module: str
) -> None:
    no_engine.setitem(sys.modules, "vllm", None)
    result = _collected(pytester, no_engine, "engine", module)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*promises engine, but no vllm*"])


def test_a_missing_module_of_our_own_is_no_reason_to_skip(
    pytester: pytest.Pytester, no_engine: pytest.MonkeyPatch
) -> None:
    result = _collected(pytester, no_engine, "", "import appliance.nothing_of_that_name")
    result.assert_outcomes(errors=1)


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
