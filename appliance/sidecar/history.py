"""The last minutes of the engine's work, out of its heartbeats: tokens and steps a second."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from appliance.rundir.heartbeat import Heartbeat
from appliance.sidecar.background import Periodic

if TYPE_CHECKING:
    from pathlib import Path

KEPT_S = 120.0
WINDOW_S = 10.0
"""Rates are means over the last ten seconds of heartbeats: one comes each second."""


@dataclass(frozen=True)
class Sample:
    """What one heartbeat counted. `at` is on rundir.clock()."""

    at: float
    pid: int | None
    prompt_tokens: int
    generation_tokens: int
    step_count: int

    def continues(self, last: Sample) -> bool:
        """Whether it is of the same engine as `last`, and not older."""
        fell = (
            self.prompt_tokens < last.prompt_tokens
            or self.generation_tokens < last.generation_tokens
            or self.step_count < last.step_count
        )
        return self.pid == last.pid and self.at >= last.at and not fell


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
        found = _sample(Heartbeat.read(self._run_dir))
        if found is None:
            return
        with self._lock:
            last = self._samples[-1] if self._samples else None
            if last and not found.continues(last):
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
        return Rates(
            prompt_tokens=round((last.prompt_tokens - first.prompt_tokens) / window, 2),
            generation_tokens=round((last.generation_tokens - first.generation_tokens) / window, 2),
            steps=round((last.step_count - first.step_count) / window, 2),
            window_s=round(window, 1),
        )

    def course(self) -> list[float]:
        """Return the generated tokens a second between each two heartbeats that are known, the oldest first."""
        with self._lock:
            samples = list(self._samples)
        return [
            round(max(0.0, b.generation_tokens - a.generation_tokens) / (b.at - a.at), 1) for a, b in pairwise(samples)
        ]


def _sample(beat: Heartbeat | None) -> Sample | None:
    if beat is None or beat.at is None:
        return None
    if beat.prompt_tokens is None or beat.generation_tokens is None or beat.step_count is None:
        return None
    return Sample(beat.at, beat.pid, beat.prompt_tokens, beat.generation_tokens, beat.step_count)
