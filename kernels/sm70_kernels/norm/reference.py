"""What the norms compute, in plain torch. FP16 and FP32 are worked in FP32, FP64 in FP64; rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sm70_kernels.precision import rounded, wide, wide_type

if TYPE_CHECKING:
    from collections.abc import Sequence


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · (1 + weight), normed over the last dimension (Gemma's form)."""
    exact = wide(x)
    return rounded(_unit(exact, eps) * (1 + weight.to(exact.dtype)), x)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rms_norm(x + residual) in x's type, and x + residual unrounded, as upstream carries it for FP16 models."""
    total = wide(x) + residual.to(wide_type(x))
    return rounded(_unit(total, eps) * (1 + weight.to(total.dtype)), x), total.contiguous()


def gated_rms_norm(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x²) + eps) · weight · silu(z), normed over the last dimension."""
    exact = wide(x)
    gate = torch.nn.functional.silu(z.to(exact.dtype))
    return rounded(_unit(exact, eps) * weight.to(exact.dtype) * gate, x)


def qk_norm_mrope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    sections: Sequence[int],
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return q and k [tokens, heads, head] with each head normed and its first part turned by its token's positions.

    `positions` is [tokens] or [3, tokens] (time, height, width); `cos_sin_cache` is [positions, rotary], cosines first.
    The axes take turns over the frequencies: i belongs to height when i mod 3 is 1 and i < 3·sections[1], to width when
    i mod 3 is 2 and i < 3·sections[2], else to time. A position outside the cache reads its nearest row.
    """
    half = cos_sin_cache.shape[-1] // 2
    axes = (positions if positions.ndim == 2 else positions.expand(3, -1)).clamp(0, cos_sin_cache.shape[0] - 1)
    frequency = torch.arange(half, device=q.device)
    by_height = (frequency % 3 == 1) & (frequency < 3 * sections[1])
    by_width = (frequency % 3 == 2) & (frequency < 3 * sections[2])

    def taking_turns(table: torch.Tensor) -> torch.Tensor:
        time, height, width = table[axes].unbind(0)
        return torch.where(by_height, height, torch.where(by_width, width, time))[:, None]

    def turned(heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        exact = wide(heads)
        normed = _unit(exact, eps) * (1 + weight.to(exact.dtype))
        low, high, rest = normed.split([half, half, normed.shape[-1] - 2 * half], dim=-1)
        cosine = taking_turns(cos_sin_cache[:, :half]).to(exact.dtype)
        sine = taking_turns(cos_sin_cache[:, half:]).to(exact.dtype)
        return rounded(torch.cat((low * cosine - high * sine, high * cosine + low * sine, rest), dim=-1), heads)

    return turned(q, q_weight), turned(k, k_weight)


def _unit(exact: torch.Tensor, eps: float) -> torch.Tensor:
    return exact * torch.rsqrt(exact.square().mean(dim=-1, keepdim=True) + eps)
