"""Prove operators on this very card before they are used: a few small cases each, at the engine's load."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sm70_kernels.cases import cases
from sm70_kernels.errors import KernelError
from sm70_kernels.proof.prove import prove
from sm70_kernels.proof.subject import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm70_kernels.proof.subject import Subject

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Result:
    """What the self-test of one operator said.

    `reason` is empty when it passed, else the stable word of the acceleration report (`selftest_failed:NAME` or
    `operator_missing:NAME`); `detail` is one line for a person; `error` is the greatest relative error seen.
    """

    operator: str
    passed: bool
    reason: str
    detail: str
    error: float
    cases: int


def run(names: Iterable[str], device: torch.device | None = None, until: float = float("inf")) -> dict[str, Result]:
    """Return the self-test's result of each named operator, on the current device unless another is given.

    No case begins after `until`, a time of `time.monotonic()`: an operator that has cases left then has failed.
    `mma_lanes` and `dequant_codes` are operators here too: whoever uses the tensor core wants them. No failure is
    raised; an unknown name is a KeyError.
    """
    place = device or torch.device("cuda", torch.cuda.current_device())
    known = subjects()
    return {name: _test(known[name], place, until) for name in names}


def _test(subject: Subject, device: torch.device, until: float) -> Result:
    worst, done = 0.0, 0

    def failed(reason: str, detail: str) -> Result:
        return Result(subject.operator, False, reason, detail, worst, done)

    for case in cases(subject.operator, "selftest"):
        if time.monotonic() > until:
            return failed(f"selftest_failed:{subject.operator}", f"{case.name}: the self-test's time was over")
        try:
            outcome = prove(subject, case, device, REPEATS)
        except KernelError as error:
            missing = error.reason.startswith("operator_missing:")
            return failed(f"{'operator_missing' if missing else 'selftest_failed'}:{subject.operator}", str(error))
        except (RuntimeError, ValueError) as error:
            # torch reports a fault of the device so; whatever it was, the operator is not to be used.
            return failed(f"selftest_failed:{subject.operator}", f"{case.name}: {str(error).splitlines()[0]}")
        worst, done = max(worst, outcome.error), done + 1
        if not outcome.passed:
            return failed(f"selftest_failed:{subject.operator}", f"{case.name}: {outcome.sentence()}")
    return Result(subject.operator, True, "", "", worst, done)
