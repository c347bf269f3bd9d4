"""What it takes to prove and to time an operator: its inputs, its reference, the bytes that it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from sm70_kernels import families

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm70_kernels.cases import Case

GATE = 1e-3
"""Greatest relative error ‖out − ref‖ / ‖ref‖ of an operator with FP16 results."""

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """One operator under proof; its cases are `sm70_kernels.cases.cases(operator, scope)`.

    `inputs(case, device)` makes the same arguments each time. `run(*arguments)` and `reference(*arguments)` return one
    tensor, a tuple of them or None; the reference is given every floating-point argument as FP64. `mutates` numbers the
    arguments that both change in place (KV pages, states): they count as results after those returned, and what the
    reference leaves alone in them must keep its bits. `moved_bytes(case)` is what an ideal kernel reads and writes
    once. `kernels` names the kernels (`registry.Kernel.name`) it may launch.
    """

    operator: str
    kernels: tuple[str, ...]
    inputs: Callable[[Case, torch.device], tuple[Any, ...]]
    run: Callable[..., torch.Tensor | Tensors | None]
    reference: Callable[..., torch.Tensor | Tensors | None]
    moved_bytes: Callable[[Case], int]
    gate: float = GATE
    mutates: tuple[int, ...] = ()

    def results(self, arguments: Sequence[Any]) -> Tensors:
        """Run the operator on `arguments`, some of which it may change. Returns what it returned and those."""
        return *as_tuple(self.run(*arguments)), *(arguments[place] for place in self.mutates)

    def wanted(self, arguments: Sequence[Any]) -> Tensors:
        """Return what the reference makes of `arguments` in FP64, as `results`; the arguments stay as they are."""
        held = [exact(each) for each in arguments]
        for place in self.mutates:
            held[place] = arguments[place].clone() if held[place] is arguments[place] else held[place]
        return *as_tuple(self.reference(*held)), *(cast("torch.Tensor", held[place]) for place in self.mutates)


def subjects() -> dict[str, Subject]:
    """Return every subject by operator, in the families' order."""
    found = [subject for family in families.modules("subject") for subject in family.SUBJECTS]
    return {subject.operator: subject for subject in found}


def generator(case: Case) -> torch.Generator:
    """Return a generator on the CPU whose numbers depend on the case alone: every device is given the same inputs."""
    # Python's own hash of a string differs from process to process.
    seed = sum(ord(letter) * 31**index for index, letter in enumerate(case.name)) % 2**31
    return torch.Generator("cpu").manual_seed(seed)


def copied(argument: object, device: torch.device) -> object:
    """Return a copy of a tensor on `device`, strides and the gaps between rows included; anything else as it is."""
    if not isinstance(argument, torch.Tensor):
        return argument
    tensor = cast("torch.Tensor", argument)
    whole = tensor if tensor._base is None else tensor._base
    there = whole.to(device, copy=True)
    return there.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - whole.storage_offset())


def as_tuple(result: torch.Tensor | Tensors | None) -> Tensors:
    """Return an operator's result as a tuple; None is an empty one."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result or ())


def exact(argument: object) -> object:
    """Return a floating-point tensor as float64; anything else as it is."""
    tensor = cast("torch.Tensor", argument)
    return tensor.double() if isinstance(argument, torch.Tensor) and tensor.is_floating_point() else argument
