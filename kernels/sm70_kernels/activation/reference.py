"""What the gates compute, in plain torch. FP16 and FP32 are worked in FP32, FP64 in FP64; rounded once."""

from __future__ import annotations

import torch

from sm70_kernels.precision import rounded, wide


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Return silu(first half) · second half of the last dimension."""
    gate, up = wide(x).chunk(2, dim=-1)
    return rounded(torch.nn.functional.silu(gate) * up, x)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return x · sigmoid(gate), packed."""
    exact = wide(x)
    return rounded(exact * torch.sigmoid(gate.to(exact.dtype)), x)
