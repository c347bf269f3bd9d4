"""`torch.ops.sm70.silu_and_mul` and `sigmoid_gate`: one element of FP16 by another, FP32 inside, one rounding."""

from __future__ import annotations

import torch

from sm70_kernels.activation import reference, table
from sm70_kernels.launch import launch
from sm70_kernels.launch.layout import rows_of, sixteen_bytes, stride
from sm70_kernels.launch.outputs import new_like
from sm70_kernels.torch_library import like_first, refused, register


def _gate(x: torch.Tensor, gate: torch.Tensor, *, silu: bool) -> torch.Tensor:
    """Return f(gate) · x, packed; both are [tokens, heads, width] with neighbours in the last dimension."""
    tokens, heads, width = x.shape
    out = new_like(x)
    if x.numel():
        strides = (stride(x, 0), stride(x, 1), stride(gate, 0), stride(gate, 1))
        spec = table.gate(sixteen_bytes((x, gate), (width, *strides)), silu)
        blocks = -(-heads * width // (spec.threads * spec.constants["WIDTH"]))
        launch(spec, (tokens, blocks, 1), (out, x, gate, heads, width, *strides))
    return out


def _silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float16 or x.shape[-1] % 2:
        raise refused("silu_and_mul", "float16 rows of an even number of elements", x)
    if x.numel() == 0:
        return _silu_and_mul_fake(x)
    width = x.shape[-1] // 2
    rows = rows_of(x)[:, None]
    return _gate(rows[..., width:], rows[..., :width], silu=True).view(*x.shape[:-1], width)


def _silu_and_mul_fake(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float16 or x.ndim != 3:
        raise refused("sigmoid_gate", "x float16[tokens, heads, width]", x)
    if gate.dtype != x.dtype or gate.shape != x.shape:
        raise refused("sigmoid_gate", f"a gate float16{list(x.shape)}", gate)
    packed = [each if each.stride(2) == 1 else each.contiguous() for each in (x, gate)]
    return _gate(*packed, silu=False)


register(
    "silu_and_mul(Tensor x) -> Tensor",
    cuda=_silu_and_mul,
    cpu=reference.silu_and_mul,
    fake=_silu_and_mul_fake,
)
register(
    "sigmoid_gate(Tensor x, Tensor gate) -> Tensor",
    cuda=_sigmoid_gate,
    cpu=reference.sigmoid_gate,
    fake=like_first,
)
