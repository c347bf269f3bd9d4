"""Waiting for what another thread or process does: for the event itself, and with a limit that only a hang reaches."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 120.0
"""Below the 300 s that pytest gives a test, so that what was waited for is named."""


def until(
    reached: Callable[[], Any], told: Callable[[], str] = str, every_s: float = 0.01, limit_s: float = LIMIT_S
) -> Any:
    """Return what `reached()` returned as soon as it is true. Fails with what `told()` says after `limit_s`."""
    end = time.monotonic() + limit_s
    while not (found := reached()):
        assert time.monotonic() < end, told() or f"not within {limit_s:g} s"
        time.sleep(every_s)
    return found


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on; another program may take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
