"""`torch.ops.sm70.rms_norm`, `add_rms_norm`, `gated_rms_norm` and `qk_norm_mrope`.

FP16 rows, FP32 inside, one rounding. `qk_norm_mrope` norms and turns the heads of queries and keys, straight from the
projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sm70_kernels.launch import launch
from sm70_kernels.launch.layout import rows_of, sixteen_bytes, stride
from sm70_kernels.launch.outputs import new_like
from sm70_kernels.norm import reference, table
from sm70_kernels.precision import wide_type
from sm70_kernels.torch_library import like_first, refused, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

QK = "qk_norm_mrope"


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
    spec = table.rms_norm(hidden, wide, form, count >= table.MANY_ROWS)
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
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=wide_type(x))


def _gated_rms_norm(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    name = "gated_rms_norm"
    if x.dtype != torch.float16 or x.ndim != 3:
        raise refused(name, "x float16[tokens, heads, head]", x)
    if z.dtype != x.dtype or z.shape != x.shape:
        raise refused(name, f"z float16{list(x.shape)}", z)
    tokens, heads, head = x.shape
    _check_weight(name, head, weight)
    spec = table.gated_rms_norm(head)
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


def _check_heads(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    weights: Iterable[torch.Tensor],
    cos_sin_cache: torch.Tensor,
    sections: Sequence[int],
) -> None:
    if q.dtype != torch.float16 or q.ndim != 3:
        raise refused(QK, "q float16[tokens, heads, head]", q)
    tokens, _, head = q.shape
    if k.dtype != torch.float16 or k.ndim != 3 or k.shape[0] != tokens or k.shape[2] != head:
        raise refused(QK, f"k float16[{tokens}, heads, {head}]", k)
    for weight in weights:
        if weight.dtype != torch.float16 or weight.shape != (head,) or not weight.is_contiguous():
            raise refused(QK, f"packed weights float16[{head}]", weight)
    if positions.dtype != torch.int64 or positions.shape not in ((tokens,), (3, tokens)):
        raise refused(QK, f"positions int64[{tokens}] or [3, {tokens}]", positions)
    if cos_sin_cache.dtype != torch.float16 or cos_sin_cache.ndim != 2 or not cos_sin_cache.is_contiguous():
        raise refused(QK, "a packed cos_sin_cache float16[positions, rotary]", cos_sin_cache)
    rotary = cos_sin_cache.shape[1]
    if len(sections) != 3 or sum(sections) != rotary // 2:
        raise refused(QK, f"three sections of {rotary // 2}", sections)


def _qk_norm_mrope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    sections: Sequence[int],
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check_heads(q, k, positions, (q_weight, k_weight), cos_sin_cache, sections)
    (tokens, q_heads, head), k_heads, rotary = q.shape, k.shape[1], cos_sin_cache.shape[1]
    spec = table.qk_norm_mrope(head, rotary)
    if spec is None:
        raise ValueError(f"sm70.{QK} has no kernel for heads of {head} elements of which {rotary} are turned")
    q_out = new_like(q)
    k_out = new_like(k)
    if tokens:
        q, k = (each if each.stride(2) == 1 else each.contiguous() for each in (q, k))
        positions = positions if positions.stride(-1) == 1 else positions.contiguous()
        strides = (stride(q, 0), stride(q, 1), stride(k, 0), stride(k, 1))
        pointers = (q, k, q_weight, k_weight, cos_sin_cache)
        if not sixteen_bytes(pointers, strides):
            raise refused(QK, "heads on 16-byte boundaries", f"strides {strides}")
        axis_stride = positions.stride(0) if positions.ndim == 2 else 0
        counts = (tokens, q_heads, k_heads, cos_sin_cache.shape[0], sections[1], sections[2])
        blocks = -(-tokens * (q_heads + k_heads) // (spec.threads // spec.constants["LANES"]))
        launch(spec, blocks, (q_out, k_out, *pointers, positions, *counts, *strides, axis_stride, eps))
    return q_out, k_out


def _qk_norm_mrope_fake(q: torch.Tensor, k: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


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
register(
    f"{QK}(Tensor q, Tensor k, Tensor positions, Tensor q_weight, Tensor k_weight, Tensor cos_sin_cache, "
    "int[] sections, float eps) -> (Tensor, Tensor)",
    cuda=_qk_norm_mrope,
    cpu=reference.qk_norm_mrope,
    fake=_qk_norm_mrope_fake,
)
