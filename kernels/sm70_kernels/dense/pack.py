"""FP8 (E4M3) weights of a dense layer in fragment order; csrc/dense/w8a16.cu says why it is as it is.

    weight   uint8 [tiles, blocks, 8 steps, 32 lanes, 16]   tiles of 32 columns, blocks of 128 along K, else zeros
    scale    float32 [tiles, 2 · blocks + 32]               of a tile: ratios, block scales, column scales

A gated layer's tiles alternate: 32 columns of the gate, the same 32 of up, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sm70_kernels.dense.table import BLOCK, COUNTERS, TILE

E4M3_FOLD = 256.0
"""The kernel reads each weight as its value times 2^-8."""

MOST_RANGE = 2.0**60
"""Between the scales of one tile: accumulators are kept in units of the current one, and must stay finite in FP32."""


@dataclass(frozen=True, slots=True)
class PackedDense:
    """A layer as the operators `dense_w8a16` (or, when `gated`, `dense_w8a16_silu_mul`) take it.

    `n` columns of the result and `k` inputs. `unit` is a power of two by which the weights are divided where they are
    held as FP16. `counters` are zero whenever no kernel of this layer runs.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    counters: torch.Tensor
    n: int
    k: int
    unit: float
    gated: bool

    @property
    def arguments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int, float]:
        """What the operators take after the activations."""
        return self.weight, self.scale, self.counters, self.n, self.k, self.unit

    @property
    def bytes(self) -> int:
        """Resident bytes."""
        return sum(each.numel() * each.element_size() for each in (self.weight, self.scale, self.counters))


def pack_blocks(
    weight: torch.Tensor, scale: torch.Tensor, gated: bool = False, *, split: tuple[int, int]
) -> PackedDense:
    """Pack a layer with a scale for each 128 × 128 block, `weight_scale_inv` of a checkpoint.

    `weight` is float8_e4m3fn [N, K] with y = x · (weight · scale)ᵀ, on any device; `scale` is [⌈N / 128⌉, ⌈K / 128⌉]. A
    gated layer has the rows of its gate, then those of up, and each half its own rows of scales. `split` counts the
    ranks that share the layer along N and along K, (1, 1) for a whole layer and for a part that is known to begin where
    blocks begin: a shard is to be whole blocks, because a rank after the first would begin inside one. Raises
    ValueError, one line, for what cannot be packed.
    """
    n, k, halves = _checked(weight, gated)
    for axis, size, ranks in (("N", n, split[0]), ("K", k, split[1])):
        if ranks > 1 and size % BLOCK:
            raise ValueError(
                f"a layer split among {ranks} ranks along {axis} has {size} of {axis} on each, and its scales want "
                f"whole blocks of {BLOCK}: use fewer ranks"
            )
    blocks = math.ceil(k / BLOCK)
    rows = math.ceil(n / BLOCK)
    wanted = (halves * rows, blocks)
    if tuple(scale.shape) != wanted:
        raise ValueError(f"a weight {list(weight.shape)} wants block scales {list(wanted)}, not {list(scale.shape)}")
    codes = _padded(weight, n, k, halves, scale)
    tiles = codes.shape[1] // TILE
    padded = torch.zeros(halves, rows * BLOCK, blocks * BLOCK, dtype=torch.uint8, device=codes.device)
    padded[:, : codes.shape[1]] = codes
    empty = (padded & 0x7F).view(halves, rows, BLOCK, blocks, BLOCK).amax(dim=(2, 4)) == 0
    filled = _filled(scale.to(codes.device, torch.float32).view(halves, rows, blocks), empty)
    # Tiles of 32 columns, four of which share a row of scales.
    parts = filled.repeat_interleave(BLOCK // TILE, dim=1)[:, :tiles].transpose(0, 1).reshape(-1, blocks)
    columns = torch.full((parts.shape[0], TILE), E4M3_FOLD, device=codes.device)
    return _packed(codes, parts, columns, n, k, gated)


def pack_channels(weight: torch.Tensor, scale: torch.Tensor, gated: bool = False) -> PackedDense:
    """Pack a layer with a scale for each row of `weight`: [N] or [N, 1], or one number for all.

    Raises ValueError, one line, for what cannot be packed.
    """
    n, k, halves = _checked(weight, gated)
    if scale.numel() not in (1, weight.shape[0]):
        raise ValueError(
            f"a weight {list(weight.shape)} wants [{weight.shape[0]}] or one scale, not {list(scale.shape)}"
        )
    codes = _padded(weight, n, k, halves)
    tiles = codes.shape[1] // TILE
    values = scale.to(codes.device, torch.float32).reshape(-1).expand(weight.shape[0]).reshape(halves, n)
    empty = (codes[:, :n] & 0x7F).amax(dim=2) == 0
    _check_scales(torch.where(empty, 1.0, values))
    columns = torch.ones(halves, tiles * TILE, device=codes.device)
    columns[:, :n] = torch.where(empty, 1.0, values)
    columns = columns.view(halves, tiles, TILE).transpose(0, 1).reshape(-1, TILE) * E4M3_FOLD
    parts = torch.ones(columns.shape[0], math.ceil(k / BLOCK), device=codes.device)
    return _packed(codes, parts, columns, n, k, gated)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Return the codes uint8 [tiles, 32, K padded] of packed weights."""
    tiles, blocks = packed.shape[:2]
    return packed.view(tiles, blocks, 8, *_LANE, *_BYTES).permute(_FROM_FRAGMENTS).reshape(tiles, TILE, blocks * BLOCK)


# A lane is (half of the warp, quad-pair, column of four), its bytes are (word, low bit of k, high bit of k): a word's 4
# bytes are k 0, 2, 1, 3. A column is (quad-pair, half, column of four), k is (word, high bit, low bit).
_LANE = (2, 4, 4)
_BYTES = (4, 2, 2)
_TO_FRAGMENTS = (0, 4, 5, 2, 1, 3, 6, 8, 7)
_FROM_FRAGMENTS = (0, 4, 3, 5, 1, 2, 6, 8, 7)


def _fragments(codes: torch.Tensor) -> torch.Tensor:
    tiles, _, k = codes.shape
    split = codes.view(tiles, 4, 2, 4, k // BLOCK, 8, *_BYTES)
    return split.permute(_TO_FRAGMENTS).reshape(tiles, k // BLOCK, 8, 32, 16)


def _checked(weight: torch.Tensor, gated: bool) -> tuple[int, int, int]:
    """Return columns of the result, K, and the number of halves."""
    if weight.dtype != torch.float8_e4m3fn or weight.ndim != 2 or not weight.numel():
        seen = f"{str(weight.dtype).removeprefix('torch.')}{list(weight.shape)}"
        raise ValueError(f"a dense layer's weight is to be float8_e4m3fn [N, K], not {seen}")
    rows, k = weight.shape
    if gated and rows % 2:
        raise ValueError(f"gate and up have the same number of rows, and {rows} is odd")
    return rows // (2 if gated else 1), k, 2 if gated else 1


def _padded(weight: torch.Tensor, n: int, k: int, halves: int, block_scale: torch.Tensor | None = None) -> torch.Tensor:
    """Return the codes [halves, N in whole tiles, K in whole blocks]."""
    codes = weight.contiguous().view(torch.uint8)
    wrong = (codes & 0x7F) == 0x7F
    if bool(wrong.any()):
        row, column = (int(each) for each in wrong.nonzero()[0])
        where = f"row {row}, column {column}"
        if block_scale is not None:
            half, within = divmod(row, n)
            block = (half * math.ceil(n / BLOCK) + within // BLOCK, column // BLOCK)
            where += f", block {list(block)} with scale {float(block_scale[block])}"
        raise ValueError(
            f"a weight {list(weight.shape)} has {int(wrong.sum())} elements that are not numbers (codes 0x7F, 0xFF), "
            f"the first in {where}"
        )
    shape = (halves, math.ceil(n / TILE) * TILE, math.ceil(k / BLOCK) * BLOCK)
    padded = torch.zeros(shape, dtype=torch.uint8, device=weight.device)
    padded[:, :n, :k] = codes.view(halves, n, k)
    return padded


def _check_scales(scale: torch.Tensor) -> None:
    good = torch.isfinite(scale) & (scale > 0)
    if not bool(good.all()):
        place = (~good).nonzero()[0]
        raise ValueError(
            f"scales are to be positive numbers, not {float(scale[~good][0])} (of half {int(place[0])}, then "
            f"{place[1:].tolist()})"
        )


def _filled(scale: torch.Tensor, empty: torch.Tensor) -> torch.Tensor:
    """Return scales [halves, rows, blocks] with those of blocks of zeros, which may be anything, made harmless.

    Such a block takes the scale of its neighbour along K, so that the ratio between them is one.
    """
    _check_scales(torch.where(empty, 1.0, scale))
    blocks = scale.shape[-1]
    index = torch.arange(blocks, device=scale.device).expand_as(scale)
    before = torch.where(empty, -1, index).cummax(dim=-1).values
    after = torch.where(empty, blocks, index).flip(-1).cummin(dim=-1).values.flip(-1)
    source = torch.where(before >= 0, before, after)
    filled = torch.where(source < blocks, scale.gather(-1, source.clamp(max=blocks - 1)), 1.0)
    ranges = filled.amax(dim=-1).double() / filled.amin(dim=-1).double()
    if float(ranges.max()) > MOST_RANGE:
        raise ValueError(
            f"block scales of the same columns differ by a factor of {float(ranges.max()):.1e}, above 2^60 "
            f"(of half {int(ranges.argmax()) // ranges.shape[-1]}, row {int(ranges.argmax()) % ranges.shape[-1]})"
        )
    return filled


def _packed(
    codes: torch.Tensor, parts: torch.Tensor, columns: torch.Tensor, n: int, k: int, gated: bool
) -> PackedDense:
    halves, padded_n, padded_k = codes.shape
    tiles = codes.view(halves, padded_n // TILE, TILE, padded_k).transpose(0, 1).reshape(-1, TILE, padded_k)
    ratios = torch.ones_like(parts)
    ratios[:, 1:] = parts[:, :-1] / parts[:, 1:]
    return PackedDense(
        weight=_fragments(tiles),
        scale=torch.cat((ratios, parts, columns), dim=1).contiguous(),
        counters=torch.zeros(COUNTERS, dtype=torch.int32, device=codes.device),
        n=n,
        k=k,
        unit=_unit(float(parts.max()) * float(columns.max()) / E4M3_FOLD * 448),
        gated=gated,
    )


def _unit(greatest: float) -> float:
    """Return 1 where weights up to `greatest` are good as FP16, else the power of two that makes them about 1."""
    return 1.0 if 2.0**-9 <= greatest <= 2.0**15 else 2.0 ** math.floor(math.log2(greatest))
