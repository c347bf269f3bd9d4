"""The last minutes of the engine's work, out of its heartbeats: tokens and steps a second."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from appliance import rundir
from appliance.sidecar.background import Periodic
from appliance.sidecar.records import number

if TYPE_CHECKING:
    from pathlib import Path

KEPT_S = 120.0
WINDOW_S = 10.0
"""Rates are means over the last ten seconds of heartbeats: one comes each second."""

COUNTED = ("prompt_tokens", "generation_tokens", "step")


@dataclass(frozen=True)
class Sample:
    """One heartbeat. `at` is on rundir.clock(); `counts` in the order of COUNTED."""

    at: float
    pid: object
    counts: tuple[float, float, float]


@dataclass(frozen=True)
class Rates:
    """Per second, over `window_s`; None where fewer than two heartbeats of one engine are known."""

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    steps: float | None = None
    window_s: float | None = None


class History:
    """Keeps what the heartbeats counted; a restarted engine begins anew."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._samples: deque[Sample] = deque()
        self._lock = threading.Lock()
        self.thread = Periodic("read-the-heartbeat", 1.0, self.sample)

    def sample(self) -> None:
        """Take in the heartbeat that stands there now."""
        found = _sample(rundir.read(self._run_dir, rundir.HEARTBEAT))
        if found is None:
            return
        with self._lock:
            last = self._samples[-1] if self._samples else None
            if last and (found.pid != last.pid or found.at < last.at or found.counts < last.counts):
                self._samples.clear()
            elif last and found.at == last.at:
                return
            self._samples.append(found)
            while self._samples[0].at < found.at - KEPT_S:
                self._samples.popleft()

    def rates(self, now: float) -> Rates:
        """Return the rates of the last `WINDOW_S` seconds. `now` is on rundir.clock()."""
        with self._lock:
            recent = [sample for sample in self._samples if sample.at >= now - WINDOW_S]
        if len(recent) < 2:
            return Rates()
        first, last = recent[0], recent[-1]
        window = last.at - first.at
        prompt, generation, steps = (round((b - a) / window, 2) for a, b in zip(first.counts, last.counts, strict=True))
        return Rates(prompt, generation, steps, round(window, 1))

    def course(self) -> list[float]:
        """Return the generated tokens a second between each two heartbeats that are known, the oldest first."""
        with self._lock:
            samples = list(self._samples)
        at = COUNTED.index("generation_tokens")
        return [round(max(0.0, b.counts[at] - a.counts[at]) / (b.at - a.at), 1) for a, b in pairwise(samples)]


def _sample(heartbeat: dict[str, Any] | None) -> Sample | None:
    at, *counts = (number(heartbeat, name) for name in ("at", *COUNTED))
    prompt, generation, step = counts
    if at is None or prompt is None or generation is None or step is None:
        return None
    return Sample(at, (heartbeat or {}).get("pid"), (prompt, generation, step))
