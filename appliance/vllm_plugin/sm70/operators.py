"""The one door to sm70_kernels: modules of the kernel package are imported here, on first use, and nowhere else."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from sm70_kernels.pack.dense import PackedDense

_DEFINED_BY = {
    "dense_w8a16": "sm70_kernels.operators.dense",
    "dense_w8a16_silu_mul": "sm70_kernels.operators.dense",
    "rms_norm": "sm70_kernels.operators.norms",
    "add_rms_norm": "sm70_kernels.operators.norms",
    "gated_rms_norm": "sm70_kernels.operators.norms",
    "qk_norm_mrope": "sm70_kernels.operators.rotary",
    "silu_and_mul": "sm70_kernels.operators.gates",
    "sigmoid_gate": "sm70_kernels.operators.gates",
}


@cache
def operator(name: str) -> Callable[..., Any]:
    """Return `torch.ops.sm70.NAME`, a call that torch.compile sees as one node; on a CPU it runs the reference."""
    import torch

    import_module(_DEFINED_BY[name])
    return getattr(torch.ops.sm70, name).default  # type: ignore[no-any-return]


def pack_blocks(weight: torch.Tensor, scale: torch.Tensor, gated: bool) -> PackedDense:
    """Pack an FP8 weight with a scale for each 128 × 128 block; see `sm70_kernels`' function of this name."""
    from sm70_kernels.pack.dense import pack_blocks

    return pack_blocks(weight, scale, gated)


def pack_channels(weight: torch.Tensor, scale: torch.Tensor, gated: bool) -> PackedDense:
    """Pack an FP8 weight with a scale for each row; see `sm70_kernels`' function of this name."""
    from sm70_kernels.pack.dense import pack_channels

    return pack_channels(weight, scale, gated)
