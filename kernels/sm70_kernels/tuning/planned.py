"""Trials of what a step runs in one way only: no choice to make, and a prediction to hold to its time.

A launch that a family's `predict.py` plans is timed where its part is named like an operator under proof, on that
operator's benchmark case of as many rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sm70_kernels import timing
from sm70_kernels.cases import cases
from sm70_kernels.predict.step import launches_of
from sm70_kernels.predict.work import Planned
from sm70_kernels.proof.subject import copied, subjects
from sm70_kernels.tuning.trial import Candidate, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from sm70_kernels.cases import Case
    from sm70_kernels.proof.subject import Subject

ROWS = (1, 8, 32)
RANKS = 4
"""Benchmark cases are those of four ranks."""


def trials(ranks: int, device: torch.device, report: Callable[[str], None]) -> Iterator[Trial]:
    """Yield a trial of one candidate for each; `report` is given a line for each kernel that awaits a GPU."""
    if ranks != RANKS:
        return
    for rows in ROWS:
        for work, case in timed_alike(rows):
            if work.spec.kernel.awaits_gpu:
                report(f"{work.spec.name} is not timed: no GPU has proven it (`make gpu-test`)")
                continue
            subject = subjects()[work.part]
            candidate = Candidate(work.spec, work.launch, _calls(subject, case, device))
            yield Trial(work.family, f"{work.part} {work.launch.shape}", (candidate,))


def timed_alike(rows: int) -> list[tuple[Planned, Case]]:
    """Return the launches of a decode step of `rows` rows that are an operator's, each with its benchmark case."""
    found = []
    for work in launches_of(rows, RANKS):
        if isinstance(work, Planned) and work.part in subjects():
            case = next((each for each in cases(work.part, "benchmark") if each.sizes.get("tokens") == rows), None)
            if case is not None:
                found.append((work, case))
    return found


def _calls(subject: Subject, case: Case, device: torch.device) -> list[Callable[[], torch.Tensor]]:
    first = subject.inputs(case, device)
    sets = [first, *(tuple(copied(each, device) for each in first) for _ in range(1, _sets(subject, case, device)))]
    return [partial(_result, subject, each) for each in sets]


def _sets(subject: Subject, case: Case, device: torch.device) -> int:
    return timing.rotations(subject.moved_bytes(case), device)


def _result(subject: Subject, arguments: tuple[object, ...]) -> torch.Tensor:
    return subject.results(arguments)[0]
