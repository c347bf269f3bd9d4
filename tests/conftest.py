"""Shares the tests out, skips with a reason what needs more than is here, and settles hypothesis for all."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.requirement import ENGINE_PACKAGES, required

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from xdist.remote import Producer

pytest_plugins = ["pytester"]

ENGINES = ("tests/system/engine/", "tests/system/containers/", "tests/cache/test_cache_volumes.py")
"""What starts real engines and containers, builds images, and shares both between tests."""


# How long an example takes depends on what else this machine does. The same examples each time: a failure comes again.
settings.register_profile("appliance", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("appliance")


class NeedyModule(pytest.Module):
    """A file of tests; one that imports a package of an engine needs an engine, and is skipped where there is none."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            if isinstance(error.__cause__, ModuleNotFoundError):
                _missed(error.__cause__)
            raise


def _missed(error: ModuleNotFoundError) -> None:
    """Need an engine where `error` missed one of its packages."""
    if (error.name or "").partition(".")[0] in ENGINE_PACKAGES:
        required("engine")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Collect files of tests as NeedyModule."""
    module: pytest.Module = NeedyModule.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Skip or fail a test whose marker `needs` names what is not here, or whose fixture imports it."""
    for marker in item.iter_markers("needs"):
        for need in marker.args:
            required(need)
    try:
        return (yield)
    except ModuleNotFoundError as error:
        _missed(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Do the same for a test that imports a package of an engine while it runs."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        _missed(error)
        raise


class OneEngineAtATime(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """One worker runs all that starts engines and containers, in order; the others take the rest file by file.

    It begins with them, since they take longer than everything else: begun later, they would leave the others idle.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "engines" if nodeid.startswith(ENGINES) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        if "engines" in self.workqueue:
            self.workqueue.move_to_end("engines", last=False)
        super()._assign_work_unit(node)


def pytest_configure() -> None:
    """Let Ctrl-C through: a job in a shell's background ignores it, and so would every process of a test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Any:
    """Share out by file, whatever --dist says: pytest-xdist 3.8 does not see its own groups under this pytest."""
    return OneEngineAtATime(config, log)


@pytest.fixture
def complete_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that has every operator which a route names: what is chosen then depends on the machine alone."""
    monkeypatch.setattr("appliance.acceleration.routes.NOT_BUILT", frozenset())
