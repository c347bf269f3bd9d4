"""In which type a reference works, and its one rounding at the end."""

from __future__ import annotations

import torch


def wide_type(x: torch.Tensor) -> torch.dtype:
    """Return the type in which `x` is worked: FP64 stays, everything else is FP32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return `x` in the type in which it is worked."""
    return x.to(wide_type(x))


def rounded(exact: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return `exact` packed, rounded to the type of `like`."""
    return exact.to(like.dtype).contiguous()
