"""`torch.ops.sm70.rms_norm`, `add_rms_norm` and `gated_rms_norm`: FP16 rows, FP32 inside, one rounding."""

from __future__ import annotations

import torch

from sm70_kernels.heuristics import elementwise
from sm70_kernels.launch import launch
from sm70_kernels.operators.layout import rows_of, sixteen_bytes, stride
from sm70_kernels.operators.library import like_first, refused, register
from sm70_kernels.operators.outputs import new_like
from sm70_kernels.reference import elementwise as reference


def _check_weight(operator: str, elements: int, weight: torch.Tensor) -> None:
    packed = weight.dtype == torch.float16 and weight.ndim == 1 and weight.is_contiguous()
    if not packed or weight.shape[0] != elements:
        raise refused(operator, f"a packed weight float16[{elements}]", weight)


def _norm_rows(
    operator: str, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if x.dtype != torch.float16:
        raise refused(operator, "float16 rows", x)
    hidden = x.shape[-1]
    _check_weight(operator, hidden, weight)
    out = new_like(x)
    total = None if residual is None else new_like(x, torch.float32)
    if x.numel() == 0:
        return out, total
    rows = rows_of(x)
    count, step, carried_step, form = rows.shape[0], stride(rows, 0), 0, 0
    if residual is None:
        carried = None
        wide = sixteen_bytes((rows, weight), (hidden, step))
    else:
        carried = rows_of(residual)
        carried_step, form = stride(carried, 0), 1 if carried.dtype == torch.float16 else 2
        wide = sixteen_bytes((rows, weight, carried), (hidden, step, carried_step))
    spec = elementwise.rms_norm(hidden, wide, form, count >= elementwise.MANY_ROWS)
    if spec is None:
        raise ValueError(f"sm70.{operator} has no kernel for rows of {hidden} elements{'' if wide else ', unaligned'}")
    nothing = 0
    pointers = (out, nothing if total is None else total, rows, nothing if carried is None else carried, weight)
    blocks = -(-count // spec.constants["ROWS"])
    launch(spec, blocks, (*pointers, count, hidden, step, carried_step, eps))
    return out, total


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _norm_rows("rms_norm", x, None, weight, eps)[0]


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    if residual.shape != x.shape or residual.dtype not in (torch.float16, torch.float32):
        raise refused("add_rms_norm", f"a residual float16 or float32{list(x.shape)}", residual)
    out, total = _norm_rows("add_rms_norm", x, residual, weight, eps)
    assert total is not None
    return out, total


def _add_rms_norm_fake(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=reference.wide_type(x))


def _gated_rms_norm(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    name = "gated_rms_norm"
    if x.dtype != torch.float16 or x.ndim != 3:
        raise refused(name, "x float16[tokens, heads, head]", x)
    if z.dtype != x.dtype or z.shape != x.shape:
        raise refused(name, f"z float16{list(x.shape)}", z)
    tokens, heads, head = x.shape
    _check_weight(name, head, weight)
    spec = elementwise.gated_rms_norm(head)
    if spec is None:
        raise ValueError(f"sm70.{name} has no kernel for heads of {head} elements")
    out = new_like(x)
    if x.numel():
        x, z = (each if each.stride(2) == 1 else each.contiguous() for each in (x, z))
        strides = (stride(x, 0), stride(x, 1), stride(z, 0), stride(z, 1))
        if not sixteen_bytes((x, z, weight), strides):
            raise refused(name, "rows on 16-byte boundaries", f"strides {strides}")
        blocks = -(-tokens * heads // (spec.threads // (head // 8)))
        launch(spec, blocks, (out, x, z, weight, tokens, heads, *strides, eps))
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
