"""Puts this folder on the import path: tests in its subfolders share `requirement`. Shares the tests out, too."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

ENGINES = ("tests/system/engine/", "tests/system/containers/", "tests/cache/test_cache_volumes.py")
"""What starts real engines and containers, builds images, and shares both between tests."""


class OneEngineAtATime(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """One worker runs all that starts engines and containers, in order; the others take the rest file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return "engines" if nodeid.startswith(ENGINES) else nodeid.partition("::")[0]


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
