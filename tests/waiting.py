"""Waiting for what another thread or process does: for the event itself, and with a limit that only a hang reaches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 120.0
"""Below the 300 s that pytest gives a test, so that what was waited for is named."""


def until(reached: Callable[[], object], told: Callable[[], str] = str, every_s: float = 0.01) -> None:
    """Return when `reached()` is true. Fails with what `told()` says after LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < end, told() or f"not within {LIMIT_S:.0f} s"
        time.sleep(every_s)
