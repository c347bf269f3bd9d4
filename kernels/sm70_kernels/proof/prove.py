"""Run one case of one operator as often as it takes to trust it, and say what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from sm70_kernels.launch.outputs import watched
from sm70_kernels.proof.subject import as_tuple

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
    """Did every run leave its arguments as they were?"""

    @property
    def passed(self) -> bool:
        """Whether all of it is as it must be."""
        return self.error <= self.gate and self.repeats and self.guards and self.shapes and self.arguments

    def sentence(self) -> str:
        """Return what was wrong, in a few words; empty when nothing was."""
        found = {
            f"relative error {self.error:.2e} above {self.gate:.0e}": not self.error <= self.gate,
            "results differ from run to run": not self.repeats,
            "bytes outside the results were written": not self.guards,
            "arguments were changed": not self.arguments,
            "results of another shape than the reference's": not self.shapes,
        }
        return "; ".join(text for text, wrong in found.items() if wrong)


def prove(subject: Subject, case: Case, device: torch.device, repeats: int = REPEATS) -> Outcome:
    """Run `case` `repeats` times on poisoned memory between guards, and compare with the reference in float64."""
    arguments = subject.inputs(case, device)
    results, guards, unchanged = [], True, True
    for _ in range(repeats):
        with watched() as watch:
            # Of its own each time: what one run leaves behind must not help the next.
            fresh = [watch.copy(each) if torch.is_tensor(each) else each for each in arguments]
            results.append(as_tuple(subject.run(*fresh)))
            guards &= watch.intact()
        pairs = [(a, b) for a, b in zip(fresh, arguments, strict=True) if torch.is_tensor(a)]
        unchanged &= all(same_bits((a,), (b,)) for a, b in pairs)
    wanted = as_tuple(subject.reference(*map(exact, arguments)))
    first = results[0]
    shapes = [each.shape for each in first] == [each.shape for each in wanted]
    return Outcome(
        operator=subject.operator,
        case=case.name,
        error=max(map(relative_error, first, wanted)) if shapes else float("inf"),
        gate=subject.gate,
        repeats=all(same_bits(first, other) for other in results[1:]),
        guards=guards,
        shapes=shapes,
        arguments=unchanged,
    )


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


def exact(argument: object) -> object:
    """Return a floating-point tensor as float64; anything else as it is."""
    tensor = cast("torch.Tensor", argument)
    return tensor.double() if isinstance(argument, torch.Tensor) and tensor.is_floating_point() else argument
