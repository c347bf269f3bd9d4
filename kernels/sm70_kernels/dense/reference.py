"""What a dense layer with packed FP8 weights computes, in plain torch. FP16 is worked in FP32, FP64 in FP64."""

from __future__ import annotations

import torch

from sm70_kernels.dense.pack import E4M3_FOLD, unpack


def dense_w8a16(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, _counters: torch.Tensor, n: int, k: int, _unit: float
) -> torch.Tensor:
    """Return x · Wᵀ in x's type; the arguments are those of the operator (`PackedDense.arguments`)."""
    return _product(x, dequantised(weight, scale)[:n, :k]).to(x.dtype)


def dense_w8a16_silu_mul(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, _counters: torch.Tensor, n: int, k: int, _unit: float
) -> torch.Tensor:
    """Return silu(x · Gᵀ) · (x · Uᵀ), rounded once; tiles of G and U alternate in the packed weight."""
    tiles, columns = weight.shape[0], 32
    alternating = dequantised(weight, scale).view(tiles // 2, 2, columns, -1)
    gate, up = (_product(x, half.reshape(-1, half.shape[-1])[:n, :k]) for half in alternating.unbind(1))
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


KEPT_BYTES = 32 * 1024 * 1024
"""Most that a weight is multiplied out to for all calls: the layers of a small model that a CPU serves."""


def dequantised(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return W [32 · tiles, 128 · blocks] of a packed weight, in `scale`'s type; not to be written to.

    A CPU has no kernel, so a small weight there is multiplied out once and kept beside it until either changes.
    """
    if (
        not weight.is_cpu
        or weight.numel() * scale.itemsize > KEPT_BYTES
        or weight.is_inference()
        or scale.is_inference()
    ):
        return _dequantised(weight, scale)
    # The versions count writes in place; another tensor of scales is another object.
    of = (scale.data_ptr(), weight._version, scale._version, scale.dtype)
    kept = getattr(weight, "_sm70_dequantised", None)
    if kept is None or kept[0] != of:
        kept = (of, _dequantised(weight, scale))
        weight._sm70_dequantised = kept
    values: torch.Tensor = kept[1]
    return values


def _dequantised(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    tiles, blocks = weight.shape[:2]
    _, parts, columns = scale.split([blocks, blocks, scale.shape[1] - 2 * blocks], dim=1)
    values = unpack(weight).view(torch.float8_e4m3fn).to(scale.dtype).view(tiles, 32, blocks, 128)
    # In place: in FP64 an LM head is 2.5 GB already.
    values *= parts[:, None, :, None]
    values *= columns[:, :, None, None] / E4M3_FOLD
    return values.view(tiles * 32, blocks * 128)


def _product(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.to(wide) @ matrix.to(wide).T
