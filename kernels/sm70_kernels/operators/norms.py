"""`torch.ops.sm70.rms_norm`, `add_rms_norm` and `gated_rms_norm`: FP16 rows, FP32 inside, one rounding."""

from __future__ import annotations

import torch

from sm70_kernels.heuristics import elementwise
from sm70_kernels.launch import launch
from sm70_kernels.operators.layout import rows_of, sixteen_bytes, stride
from sm70_kernels.operators.library import described, like_first, register, wanted
from sm70_kernels.operators.outputs import new
from sm70_kernels.reference import elementwise as reference


def _check_weight(operator: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    fits = weight.dtype == torch.float16 and weight.shape == x.shape[-1:] and weight.is_contiguous()
    wanted(fits, operator, f"a packed weight float16[{x.shape[-1]}]", described(weight))


def _norm_rows(
    operator: str, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    wanted(x.dtype == torch.float16, operator, "float16 rows", described(x))
    _check_weight(operator, x, weight)
    hidden = x.shape[-1]
    out = new(x.shape, x.dtype, x.device)
    total = None if residual is None else new(x.shape, torch.float32, x.device)
    if x.numel() == 0:
        return out, total
    rows = rows_of(x)
    carried = None if residual is None else rows_of(residual)
    step, carried_step = stride(rows, 0), 0 if carried is None else stride(carried, 0)
    tensors = (rows, weight) if carried is None else (rows, weight, carried)
    wide = sixteen_bytes(tensors, (hidden, step, carried_step))
    form = 0 if carried is None else 1 if carried.dtype == torch.float16 else 2
    spec = elementwise.rms_norm(hidden, wide, form)
    if spec is None:
        raise ValueError(f"sm70.{operator} has no kernel for rows of {hidden} elements{'' if wide else ', unaligned'}")
    nothing = 0
    pointers = (out, nothing if total is None else total, rows, nothing if carried is None else carried, weight)
    launch(spec, rows.shape[0], spec.threads, (*pointers, hidden, step, carried_step, eps))
    return out, total


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _norm_rows("rms_norm", x, None, weight, eps)[0]


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    fits = residual.shape == x.shape and residual.dtype in (torch.float16, torch.float32)
    wanted(fits, "add_rms_norm", f"a residual float16 or float32{list(x.shape)}", described(residual))
    out, total = _norm_rows("add_rms_norm", x, residual, weight, eps)
    assert total is not None
    return out, total


def _add_rms_norm_fake(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=reference.wide_type(x))


def _gated_rms_norm(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    name = "gated_rms_norm"
    wanted(x.dtype == torch.float16 and x.ndim == 3, name, "x float16[tokens, heads, head]", described(x))
    wanted(z.dtype == x.dtype and z.shape == x.shape, name, f"z float16{list(x.shape)}", described(z))
    _check_weight(name, x, weight)
    tokens, heads, head = x.shape
    spec = elementwise.gated_rms_norm(head)
    if spec is None:
        raise ValueError(f"sm70.{name} has no kernel for heads of {head} elements")
    out = new(x.shape, x.dtype, x.device)
    if x.numel():
        x, z = (each if each.stride(2) == 1 else each.contiguous() for each in (x, z))
        strides = (stride(x, 0), stride(x, 1), stride(z, 0), stride(z, 1))
        wanted(sixteen_bytes((x, z, weight), strides), name, "rows on 16-byte boundaries", f"strides {strides}")
        blocks = -(-tokens * heads // (spec.threads // (head // 8)))
        launch(spec, blocks, spec.threads, (out, x, z, weight, tokens, heads, *strides, eps))
    return out


register(
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    cuda=_rms_norm,
    cpu=reference.rms_norm,
    fake=like_first,
)
register(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    cuda=_add_rms_norm,
    cpu=reference.add_rms_norm,
    fake=_add_rms_norm_fake,
)
register(
    "gated_rms_norm(Tensor x, Tensor z, Tensor weight, float eps) -> Tensor",
    cuda=_gated_rms_norm,
    cpu=reference.gated_rms_norm,
    fake=like_first,
)
