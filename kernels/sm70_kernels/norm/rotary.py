"""`torch.ops.sm70.qk_norm_mrope`: norms and turns the heads of queries and keys, straight from the projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sm70_kernels.heuristics import elementwise
from sm70_kernels.launch import launch
from sm70_kernels.operators.layout import sixteen_bytes, stride
from sm70_kernels.operators.library import refused, register
from sm70_kernels.operators.outputs import new_like
from sm70_kernels.reference import elementwise as reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NAME = "qk_norm_mrope"


def _check(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    weights: Iterable[torch.Tensor],
    cos_sin_cache: torch.Tensor,
    sections: Sequence[int],
) -> None:
    if q.dtype != torch.float16 or q.ndim != 3:
        raise refused(NAME, "q float16[tokens, heads, head]", q)
    tokens, _, head = q.shape
    if k.dtype != torch.float16 or k.ndim != 3 or k.shape[0] != tokens or k.shape[2] != head:
        raise refused(NAME, f"k float16[{tokens}, heads, {head}]", k)
    for weight in weights:
        if weight.dtype != torch.float16 or weight.shape != (head,) or not weight.is_contiguous():
            raise refused(NAME, f"packed weights float16[{head}]", weight)
    if positions.dtype != torch.int64 or positions.shape not in ((tokens,), (3, tokens)):
        raise refused(NAME, f"positions int64[{tokens}] or [3, {tokens}]", positions)
    if cos_sin_cache.dtype != torch.float16 or cos_sin_cache.ndim != 2 or not cos_sin_cache.is_contiguous():
        raise refused(NAME, "a packed cos_sin_cache float16[positions, rotary]", cos_sin_cache)
    rotary = cos_sin_cache.shape[1]
    if len(sections) != 3 or sum(sections) != rotary // 2:
        raise refused(NAME, f"three sections of {rotary // 2}", sections)


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
    _check(q, k, positions, (q_weight, k_weight), cos_sin_cache, sections)
    (tokens, q_heads, head), k_heads, rotary = q.shape, k.shape[1], cos_sin_cache.shape[1]
    spec = elementwise.qk_norm_mrope(head, rotary)
    if spec is None:
        raise ValueError(f"sm70.{NAME} has no kernel for heads of {head} elements of which {rotary} are turned")
    q_out = new_like(q)
    k_out = new_like(k)
    if tokens:
        q, k = (each if each.stride(2) == 1 else each.contiguous() for each in (q, k))
        positions = positions if positions.stride(-1) == 1 else positions.contiguous()
        strides = (stride(q, 0), stride(q, 1), stride(k, 0), stride(k, 1))
        pointers = (q, k, q_weight, k_weight, cos_sin_cache)
        if not sixteen_bytes(pointers, strides):
            raise refused(NAME, "heads on 16-byte boundaries", f"strides {strides}")
        axis_stride = positions.stride(0) if positions.ndim == 2 else 0
        counts = (tokens, q_heads, k_heads, cos_sin_cache.shape[0], sections[1], sections[2])
        blocks = -(-tokens * (q_heads + k_heads) // (spec.threads // spec.constants["LANES"]))
        launch(spec, blocks, (q_out, k_out, *pointers, positions, *counts, *strides, axis_stride, eps))
    return q_out, k_out


def _qk_norm_mrope_fake(q: torch.Tensor, k: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape)


register(
    f"{NAME}(Tensor q, Tensor k, Tensor positions, Tensor q_weight, Tensor k_weight, Tensor cos_sin_cache, "
    "int[] sections, float eps) -> (Tensor, Tensor)",
    cuda=_qk_norm_mrope,
    cpu=reference.qk_norm_mrope,
    fake=_qk_norm_mrope_fake,
)
