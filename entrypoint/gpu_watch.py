"""Notices a GPU that vanishes: a fallen bus link, or a container whose device access was taken away."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EVERY = 10.0
"""Seconds between two looks."""

_TIMES = 2  # one failed call can be a driver's hiccup


class GpuWatch:
    """Asks NVML about each GPU in a thread of its own, because a call about a lost GPU may hang in the driver."""

    def __init__(self, gpus: Sequence[int], ask: Callable[[int], None] | None = None, every: float = EVERY) -> None:
        """Watch `gpus`; `ask(gpu)` raises when that GPU does not answer (NVML when None)."""
        self.lost: str | None = None
        """Which GPU vanished, and what NVML says of it."""
        self._gpus = tuple(gpus)
        self._ask = ask or _nvml
        self._every = every
        self._failures = dict.fromkeys(self._gpus, 0)
        self._seen: set[int] = set()
        self._stop = threading.Event()
        if self._gpus:
            threading.Thread(target=self._watch, name="gpu-watch", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()

    def _watch(self) -> None:
        while True:
            for gpu in self._gpus:
                self._look(gpu)
            if self._stop.wait(self._every):
                return

    def _look(self, gpu: int) -> None:
        try:
            self._ask(gpu)
        except Exception as error:  # noqa: BLE001 - NVML's errors are made at run time, and none may end the watch
            self._failures[gpu] += 1
            # One that never answered is the doctor's to report, not a loss.
            if gpu in self._seen and self._failures[gpu] >= _TIMES:
                self.lost = f"GPU {gpu} vanished (NVML: {error})"
        else:
            self._failures[gpu] = 0
            self._seen.add(gpu)


def _nvml(gpu: int) -> None:
    import pynvml

    pynvml.nvmlInit()
    try:
        # Memory is read from the device; its name would come out of the driver's cache.
        pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(gpu))
    finally:
        pynvml.nvmlShutdown()
