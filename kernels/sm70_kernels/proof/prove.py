"""Run one case of one operator as often as it takes to trust it, and say what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from sm70_kernels.launch.outputs import watched
from sm70_kernels.proof.subject import exact

if TYPE_CHECKING:
    from sm70_kernels.cases import Case
    from sm70_kernels.proof.subject import Subject, Tensors

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case showed: the greatest relative `error` of its results, and three plain questions."""

    operator: str
    case: str
    error: float
    gate: float
    repeats: bool
    """Were all runs the same bit for bit?"""
    guards: bool
    """Did every run leave the bytes around its results alone?"""
    shapes: bool
    """Have the results the reference's shapes?"""
    arguments: bool = True
    """Did every run leave the arguments that it must not change as they were?"""
    untouched: bool = True
    """Did every run keep the bits of what the reference leaves alone in the arguments that it may change?"""

    @property
    def passed(self) -> bool:
        """Whether all of it is as it must be."""
        plain = (self.repeats, self.guards, self.shapes, self.arguments, self.untouched)
        return self.error <= self.gate and all(plain)

    def sentence(self) -> str:
        """Return what was wrong, in a few words; empty when nothing was."""
        found = {
            f"relative error {self.error:.2e} above {self.gate:.0e}": not self.error <= self.gate,
            "results differ from run to run": not self.repeats,
            "bytes outside the results were written": not self.guards,
            "arguments were changed": not self.arguments,
            "elements that no result belongs to were written": not self.untouched,
            "results of another shape than the reference's": not self.shapes,
        }
        return "; ".join(text for text, wrong in found.items() if wrong)


def prove(subject: Subject, case: Case, device: torch.device, repeats: int = REPEATS) -> Outcome:
    """Run `case` `repeats` times on poisoned memory between guards, and compare with the reference in float64.

    Every run has arguments of its own, guards around them and between their rows. Of an argument that the operator
    changes, the error counts the elements that the reference changes; all others must keep their bits.
    """
    arguments = subject.inputs(case, device)
    kept = [place for place, each in enumerate(arguments) if torch.is_tensor(each) and place not in subject.mutates]
    wanted = subject.wanted(arguments)
    returned = len(wanted) - len(subject.mutates)
    changed = [
        _changed(after, arguments[place]) for after, place in zip(wanted[returned:], subject.mutates, strict=True)
    ]
    results: list[Tensors] = []
    guards = unchanged = untouched = True
    for _ in range(repeats):
        with watched() as watch:
            # Of its own each time: what one run leaves behind must not help the next.
            fresh = [watch.copy(each) if torch.is_tensor(each) else each for each in arguments]
            results.append(subject.results(fresh))
            guards &= watch.intact()
        unchanged &= all(same_bits((fresh[place],), (arguments[place],)) for place in kept)
        untouched &= all(
            same_bits((fresh[place][~each],), (arguments[place][~each],))
            for place, each in zip(subject.mutates, changed, strict=True)
        )
    first = results[0]
    shapes = [each.shape for each in first] == [each.shape for each in wanted]
    parts = [*([...] * returned), *changed]
    errors = (
        [relative_error(a[part], b[part]) for a, b, part in zip(first, wanted, parts, strict=True)] if shapes else []
    )
    return Outcome(
        operator=subject.operator,
        case=case.name,
        error=max(errors) if errors else float("inf"),
        gate=subject.gate,
        repeats=all(same_bits(first, other) for other in results[1:]),
        guards=guards,
        shapes=shapes,
        arguments=unchanged,
        untouched=untouched,
    )


def _changed(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return where the reference wrote: elements whose value is another than before, NaN for NaN being none."""
    exactly = cast("torch.Tensor", exact(before))
    return (after != exactly) & ~(after.isnan() & exactly.isnan())


def relative_error(out: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return ‖out − wanted‖ / ‖wanted‖ in float64; infinite when `out` holds what is not a number."""
    difference = torch.linalg.vector_norm(out.double() - wanted.double())
    scale = torch.linalg.vector_norm(wanted.double())
    if not bool(torch.isfinite(difference)):
        return float("inf")
    return float(difference / scale) if float(scale) else float(difference)


def same_bits(one: Tensors, other: Tensors) -> bool:
    """Say whether two results are equal bit for bit, so that not-a-number equals itself and -0 differs from 0."""
    return all(
        torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )
