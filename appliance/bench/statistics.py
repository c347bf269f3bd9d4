"""What is said of samples beyond their distribution: modes of a mixed one, and how far repeats lie apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bench.result import Metric, Stats, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FAST_MS, SLOW_MS = 100.0, 4000.0
"""Between an undisturbed decode step and one that waited for somebody's prefill: the published split of the 32K run."""

MODES: dict[str, Callable[[float], bool]] = {
    "under 100 ms": lambda value: value < FAST_MS,
    "100 ms to 4 s": lambda value: FAST_MS <= value <= SLOW_MS,
    "over 4 s": lambda value: value > SLOW_MS,
}


def trace(metric: Metric, label: str, samples: Sequence[float]) -> Trace:
    """Return the whole distribution, with its samples."""
    return Trace(metric=metric, label=label, stats=Stats.of(samples) if samples else None, samples=tuple(samples))


def by_mode(metric: Metric, label: str, samples: Sequence[float]) -> tuple[Trace, ...]:
    """Return a trace of each mode in `MODES`, in milliseconds, with its share of all samples."""
    found = []
    for mode, holds in MODES.items():
        part = [value for value in samples if holds(value)]
        share = len(part) / len(samples) if samples else 0.0
        stats = Stats.of(part) if part else None
        found.append(Trace(metric=metric, label=label, mode=mode, share=share, stats=stats))
    return tuple(found)


def spread(means: Sequence[float]) -> float | None:
    """Return how far the largest of some means lies above the smallest, as a share of it; None for fewer than two."""
    return max(means) / min(means) - 1.0 if len(means) > 1 else None
