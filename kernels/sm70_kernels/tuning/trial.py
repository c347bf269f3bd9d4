"""A trial: the candidates that may do one thing, how each is called and how each is described to the predicting model.

Families make trials (`tune.py`); timing them, comparing their bits and choosing among their times is the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sm70_kernels import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm70_kernels.predict.launch import Launch
    from sm70_kernels.registry import Specialisation

ALIKE = 1.03
"""Times within this factor of the best are taken for equal, and the first in the candidates' order wins: a difference
under 3 % decides nothing (kernels/MODEL.md, "Held to times that V100s took")."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way: the kernel, its launch as the model sees it, and calls on different data, none of which is in L2.

    Candidates of a trial with the same `bits` must give the same result bit for bit.
    """

    spec: Specialisation
    launch: Launch
    calls: Sequence[Callable[[], torch.Tensor]]
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """What the candidates do, in words that are a key (`n=5120 k=4352 rows=8`); the first is the table's choice."""

    family: str
    what: str
    candidates: tuple[Candidate, ...]


def microseconds(trial: Trial) -> tuple[float, ...]:
    """Return each candidate's time of one call, in µs.

    Raises RuntimeError, one line, when candidates that are to give the same bits do not, KernelError when a kernel
    cannot be had.
    """
    first: dict[int, torch.Tensor] = {}
    times = []
    for candidate in trial.candidates:
        result = candidate.calls[0]()
        if not torch.equal(result, first.setdefault(candidate.bits, result)):
            raise RuntimeError(f"{candidate.spec.name} gives other bits than the first")
        times.append(round(timing.graph_microseconds(candidate.calls), 2))
    return tuple(times)


def first_of_the_best(times: Sequence[float]) -> int:
    """Return the index of the first time that is as good as the best."""
    best = min(times)
    return next(index for index, time in enumerate(times) if time <= best * ALIKE)
