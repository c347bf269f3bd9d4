"""Threads that look at what may hang (the engine, NVML, a disk), so that no answer waits for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


class Periodic:
    """Calls `work` every `every_s` seconds, and when woken, in one daemon thread: the process ends without it."""

    def __init__(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        self._work = work
        self._every_s = every_s
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start; the first call comes at once."""
        self._thread.start()

    def wake(self) -> None:
        """Let the next call come now."""
        self._wake.set()

    def stop(self) -> None:
        """Ask for the end, without waiting for a call that hangs."""
        self._stopped.set()
        self._wake.set()

    @property
    def runs(self) -> bool:
        """Whether somebody is there to be woken."""
        return self._thread.is_alive() and not self._stopped.is_set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._work()
            except Exception:
                logger.exception("%s failed and is tried again", self._thread.name)
            self._wake.wait(self._every_s)
            self._wake.clear()
