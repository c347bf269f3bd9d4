"""The gates under proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import sm70_kernels.activation.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels.activation import reference
from sm70_kernels.proof.inputs import Maker
from sm70_kernels.proof.subject import Subject

if TYPE_CHECKING:
    from sm70_kernels.cases import Case


def _silu_and_mul(case: Case, device: torch.device) -> tuple[Any, ...]:
    return (Maker(case, device).normal(case.sizes["tokens"], 2 * case.sizes["width"], spread=3.0),)


def _sigmoid_gate(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    tokens, heads, head = sizes["tokens"], sizes["heads"], sizes["head"]
    projected = make.normal(tokens, heads, 2 * head, spread=3.0)
    return make.normal(tokens, heads, head), projected[..., head:]


def _sigmoid_gate_bytes(case: Case) -> int:
    return 2 * 3 * case.sizes["tokens"] * case.sizes["heads"] * case.sizes["head"]


SUBJECTS = (
    Subject(
        operator="silu_and_mul",
        kernels=("gate",),
        inputs=_silu_and_mul,
        run=torch.ops.sm70.silu_and_mul,
        reference=reference.silu_and_mul,
        moved_bytes=lambda case: 6 * case.sizes["tokens"] * case.sizes["width"],
    ),
    Subject(
        operator="sigmoid_gate",
        kernels=("gate",),
        inputs=_sigmoid_gate,
        run=torch.ops.sm70.sigmoid_gate,
        reference=reference.sigmoid_gate,
        moved_bytes=_sigmoid_gate_bytes,
    ),
)
