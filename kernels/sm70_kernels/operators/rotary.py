"""`torch.ops.sm70.qk_norm_mrope`: norms and turns the heads of queries and keys, straight from the projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sm70_kernels.heuristics import elementwise
from sm70_kernels.launch import launch
from sm70_kernels.operators.layout import sixteen_bytes, stride
from sm70_kernels.operators.library import described, register, wanted
from sm70_kernels.operators.outputs import new
from sm70_kernels.reference import elementwise as reference

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "qk_norm_mrope"


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
    wanted(q.dtype == torch.float16 and q.ndim == 3, NAME, "q float16[tokens, heads, head]", described(q))
    tokens, q_heads, head = q.shape
    k_heads = k.shape[1]
    like_q = k.dtype == torch.float16 and k.shape == (tokens, k_heads, head)
    wanted(like_q, NAME, f"k float16[{tokens}, heads, {head}]", described(k))
    for weight in (q_weight, k_weight):
        fits = weight.dtype == torch.float16 and weight.shape == (head,) and weight.is_contiguous()
        wanted(fits, NAME, f"packed weights float16[{head}]", described(weight))
    placed = positions.dtype == torch.int64 and positions.shape in ((tokens,), (3, tokens))
    wanted(placed, NAME, f"positions int64[{tokens}] or [3, {tokens}]", described(positions))
    table = cos_sin_cache.dtype == torch.float16 and cos_sin_cache.ndim == 2 and cos_sin_cache.is_contiguous()
    wanted(table, NAME, "a packed cos_sin_cache float16[positions, rotary]", described(cos_sin_cache))
    rotary = cos_sin_cache.shape[1]
    wanted(len(sections) == 3 and sum(sections) == rotary // 2, NAME, f"three sections of {rotary // 2}", sections)
    spec = elementwise.qk_norm_mrope(head, rotary)
    if spec is None:
        raise ValueError(f"sm70.{NAME} has no kernel for heads of {head} elements of which {rotary} are turned")
    q_out = new(q.shape, q.dtype, q.device)
    k_out = new(k.shape, k.dtype, k.device)
    if tokens:
        q, k = (each if each.stride(2) == 1 else each.contiguous() for each in (q, k))
        positions = positions if positions.stride(-1) == 1 else positions.contiguous()
        strides = (stride(q, 0), stride(q, 1), stride(k, 0), stride(k, 1))
        pointers = (q, k, q_weight, k_weight, cos_sin_cache)
        wanted(sixteen_bytes(pointers, strides), NAME, "heads on 16-byte boundaries", f"strides {strides}")
        axis_stride = positions.stride(0) if positions.ndim == 2 else 0
        counts = (tokens, q_heads, k_heads, cos_sin_cache.shape[0], sections[1], sections[2])
        blocks = -(-tokens * (q_heads + k_heads) // (spec.threads // (head // 8)))
        launch(spec, blocks, spec.threads, (q_out, k_out, *pointers, positions, *counts, *strides, axis_stride, eps))
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
