"""How keys and values are stored in the KV cache: as they are, or as FP8 codes in bytes."""

from __future__ import annotations

import torch

FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
"""The 8-bit formats by name of the KV type; their storage is uint8."""

KV_DTYPES = ("auto", *FP8)


def encoded(values: torch.Tensor, kv_dtype: str, scale: torch.Tensor) -> torch.Tensor:
    """Return what the cache stores for `values`: themselves, or uint8 codes of values / scale, rounded to nearest even.

    A magnitude beyond the format's greatest finite one, infinity included, is stored as that; NaN stays NaN.
    """
    if kv_dtype == "auto":
        return values
    fp8 = FP8[kv_dtype]
    wide = values.to(torch.promote_types(values.dtype, torch.float32)) / scale.reshape(())
    greatest = torch.finfo(fp8).max
    # Clamping keeps NaN. From FP64 by way of FP32, no value of FP16, BF16 or FP32 is rounded twice.
    return wide.clamp(-greatest, greatest).float().to(fp8).view(torch.uint8)


def decoded(stored: torch.Tensor, kv_dtype: str, dtype: torch.dtype) -> torch.Tensor:
    """Return stored values in `dtype`, packed, still to be multiplied by their scale if the format is FP8."""
    codes = stored if kv_dtype == "auto" else stored.view(FP8[kv_dtype])
    return codes.to(dtype, memory_format=torch.contiguous_format)
