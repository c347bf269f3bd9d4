"""What a dense layer with packed FP8 weights computes, in plain torch. FP16 is worked in FP32, FP64 in FP64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sm70_kernels.dense.pack import E4M3_FOLD, unpack
from sm70_kernels.dense.table import BLOCK, TILE

if TYPE_CHECKING:
    from collections.abc import Iterator


def dense_w8a16(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, _counters: torch.Tensor, n: int, k: int, _unit: float
) -> torch.Tensor:
    """Return x · Wᵀ in x's type; the arguments are those of the operator (`PackedDense.arguments`)."""
    parts = [
        _product(x, dequantised(tiles, scales)[:columns, :k]).to(x.dtype)
        for tiles, scales, columns in _slabs(weight, scale, n, 1)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def dense_w8a16_silu_mul(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, _counters: torch.Tensor, n: int, k: int, _unit: float
) -> torch.Tensor:
    """Return silu(x · Gᵀ) · (x · Uᵀ), rounded once; tiles of G and U alternate in the packed weight."""
    parts = []
    for tiles, scales, columns in _slabs(weight, scale, n, 2):
        alternating = dequantised(tiles, scales).view(tiles.shape[0] // 2, 2, TILE, -1)
        gate, up = (_product(x, half.reshape(-1, half.shape[-1])[:columns, :k]) for half in alternating.unbind(1))
        parts.append((torch.nn.functional.silu(gate) * up).to(x.dtype))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


SLAB_BYTES = 64 * 1024 * 1024
"""Most that a part of a weight takes when it is multiplied out on a GPU, where an engine has no memory to spare."""


def _slabs(
    weight: torch.Tensor, scale: torch.Tensor, n: int, halves: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Yield the tiles of a weight with their scales, and the columns of the result that they give."""
    tiles, width = weight.shape[0], TILE * BLOCK * weight.shape[1] * scale.itemsize
    at_once = tiles if weight.is_cpu else max(1, SLAB_BYTES // (halves * width)) * halves
    if at_once >= tiles:
        yield weight, scale, n
        return
    for start in range(0, tiles, at_once):
        first = start // halves * TILE
        yield weight[start : start + at_once], scale[start : start + at_once], min(n - first, at_once // halves * TILE)


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
