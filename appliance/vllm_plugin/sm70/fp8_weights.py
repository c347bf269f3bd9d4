"""FP8 weights of one layer: checkpoint order while loading, fragment order afterwards.

Loaded parameters of a layer with N columns on this rank and K inputs:

    weight        float8_e4m3fn [N, K]
    block scales  float32 [N / step, ⌈K / 128⌉], a row for every `step` columns: blocks of the checkpoint may begin
                  inside a rank's part, and `step` divides both
    channel scales float32 [N, 1]

Packed, a layer is one or more pieces, each one call of a dense operator; a piece starts where blocks begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.parameter import BasevLLMParameter

from appliance.vllm_plugin.sm70 import operators
from appliance.vllm_plugin.sm70.fp8_scheme import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm70_kernels.dense.pack import PackedDense

SLAB_BYTES = 2 << 20
"""Of a weight that are packed at a time: packing takes about five times as much for itself."""


class WeightError(ValueError):
    """A layer's tensors cannot be loaded or packed; one line that names the layer."""


class ScaleParameter(BasevLLMParameter):  # type: ignore[misc]
    """Scales of an FP8 weight while it loads. Its loaders take scales that were expanded to one row a column.

    `step` columns share a row; `shards_k` says that ranks have different columns of scales (row parallel layers).
    """

    output_dim = 0

    def __init__(self, *, step: int, shards_k: bool, data: torch.Tensor, weight_loader: Callable[..., None]) -> None:
        self.step = step
        self.shards_k = shards_k
        super().__init__(data=data, weight_loader=weight_loader)

    def load_column_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        self._load(loaded_weight, 0, self.data.shape[0] * self.step, self.tp_rank)

    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        if self.shards_k:
            columns = self.data.shape[1]
            loaded_weight = loaded_weight.narrow(1, self.tp_rank * columns, columns)
        self._load(loaded_weight, 0, self.data.shape[0] * self.step, 0)

    def load_merged_column_weight(
        self, loaded_weight: torch.Tensor, *, shard_offset: int, shard_size: int, **_rest: object
    ) -> None:
        self._load(loaded_weight, shard_offset, shard_size, self.tp_rank)

    def load_qkv_weight(
        self,
        loaded_weight: torch.Tensor,
        *,
        shard_id: str,
        num_heads: int,
        shard_offset: int,
        shard_size: int,
        **_rest: object,
    ) -> None:
        # KV heads may be on several ranks; `num_heads` is then the number of ranks that share one.
        part = self.tp_rank if shard_id == "q" else self.tp_rank // num_heads
        self._load(loaded_weight, shard_offset, shard_size, part)

    def _load(self, rows: torch.Tensor, offset: int, size: int, part: int) -> None:
        chosen = rows.narrow(0, part * size, size)[:: self.step]
        self.data.narrow(0, offset // self.step, size // self.step).copy_(chosen)


def loads_random_weights() -> bool:
    """Say whether the model that is being built gets random weights, whose scales would be nonsense."""
    return bool(get_current_vllm_config().load_config.load_format == "dummy")


def step_of(sizes: Sequence[int]) -> int:
    """Return how many columns can share a row of scales, where a rank's part is made of `sizes` columns."""
    return math.gcd(BLOCK, *sizes)


def checked_weight(name: str, loaded: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return a loaded weight that is FP8 and [rows, columns]. Raises WeightError."""
    if loaded.dtype != torch.float8_e4m3fn or tuple(loaded.shape) != (rows, columns):
        seen = f"{str(loaded.dtype).removeprefix('torch.')}{list(loaded.shape)}"
        raise WeightError(f"{name} is to be float8_e4m3fn[{rows}, {columns}], not {seen}: the checkpoint is not ours")
    return loaded


def expanded_scales(name: str, loaded: torch.Tensor, rows: int, columns: int, block: bool) -> torch.Tensor:
    """Return the loaded scales of a weight [rows, columns], a row for each of its rows. Raises WeightError."""
    if not loaded.is_floating_point() or loaded.itemsize < 2:
        raise WeightError(f"{name} is to be a float tensor, not {str(loaded.dtype).removeprefix('torch.')}")
    if block:
        wanted = (math.ceil(rows / BLOCK), math.ceil(columns / BLOCK))
        if tuple(loaded.shape) != wanted:
            raise WeightError(f"{name} is to have the shape {list(wanted)}, not {list(loaded.shape)}")
        return loaded.float().repeat_interleave(BLOCK, 0)[:rows]
    if loaded.numel() not in (1, rows):
        raise WeightError(f"{name} is to have {rows} scales or one, not {list(loaded.shape)}")
    return loaded.float().reshape(-1, 1).expand(rows, 1)


@dataclass(frozen=True, slots=True)
class Packed:
    """One piece of a layer in fragment order: tensors and constants for one call of a dense operator."""

    weight: torch.Tensor
    scale: torch.Tensor
    counters: torch.Tensor
    n: int
    k: int
    unit: float
    gated: bool


def pieces_of(scale: torch.Tensor, step: int) -> list[tuple[int, int]]:
    """Return the column ranges of a weight [N, K] that can be packed alone, by its block scales [N / step, blocks].

    In each range scales change only at multiples of 128 from the start of the range.
    """
    bits = scale.contiguous().view(torch.int32)
    changes = ((bits[1:] != bits[:-1]).any(dim=1).nonzero().flatten() + 1) * step
    starts = [0]
    for change in changes.tolist():
        if (change - starts[-1]) % BLOCK:
            starts.append(change)
    return list(zip(starts, [*starts[1:], scale.shape[0] * step], strict=True))


def can_gate(scale: torch.Tensor, step: int) -> bool:
    """Say whether the first half of a weight and the second can be packed as gate and up."""
    half = scale.shape[0] // 2
    return scale.shape[0] % 2 == 0 and all(len(pieces_of(part, step)) == 1 for part in (scale[:half], scale[half:]))


def pack_layer(weight: torch.Tensor, scale: torch.Tensor, *, block: bool, step: int, gated: bool) -> list[Packed]:
    """Return a layer's pieces; `gated` wants one piece, of gate and up. Raises ValueError, one line."""
    if not block:
        return [_in_slabs(weight, scale, operators.pack_channels, 1, gated)]
    if gated:
        assert can_gate(scale, step)
        return [_in_slabs(weight, scale, operators.pack_blocks, step, gated)]
    ranges = pieces_of(scale, step)
    return [
        _in_slabs(weight[start:stop], scale[start // step : stop // step], operators.pack_blocks, step, False)
        for start, stop in ranges
    ]


def _in_slabs(
    weight: torch.Tensor,
    scale: torch.Tensor,
    pack: Callable[[torch.Tensor, torch.Tensor, bool], PackedDense],
    step: int,
    gated: bool,
) -> Packed:
    """Pack some rows at a time, so that the temporaries of packing do not grow with the layer."""
    halves, k = 2 if gated else 1, weight.shape[1]
    n = weight.shape[0] // halves
    weights, scales = weight.view(halves, n, k), scale.view(halves, n // step, -1)
    rows = max(1, SLAB_BYTES // (halves * k * BLOCK)) * BLOCK
    # The scales of a slab begin with a block, and one row of them serves the block.
    every = BLOCK // step if pack is operators.pack_blocks else 1
    whole: Packed | None = None
    tile, greatest = 0, 0.0
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        chosen = scales[:, start // step : stop // step : every]
        part = pack(weights[:, start:stop].flatten(0, 1), chosen.flatten(0, 1), gated)
        if whole is None:
            tiles = halves * math.ceil(n / 32)
            weight_out, scale_out = (each.new_empty((tiles, *each.shape[1:])) for each in (part.weight, part.scale))
            whole = Packed(weight_out, scale_out, part.counters, n, k, part.unit, gated)
        count, blocks = part.weight.shape[:2]
        whole.weight[tile : tile + count] = part.weight
        whole.scale[tile : tile + count] = part.scale
        tile += count
        largest = float(part.scale[:, blocks : 2 * blocks].max()) * float(part.scale[:, 2 * blocks :].max())
        if largest > greatest:
            greatest, whole = largest, replace(whole, unit=part.unit)
    assert whole is not None
    return whole


def place(layer: torch.nn.Module, pieces: list[Packed]) -> list[tuple[int, int, float]]:
    """Register packed pieces as parameters of a layer, and return the constants (n, k, unit) of each.

    On a GPU the operators' workspace is taken here, before memory is measured and graphs are captured.
    """
    if pieces[0].weight.is_cuda:
        operators.reserve_workspace(pieces[0].weight.device)
    for number, piece in enumerate(pieces):
        for name in ("weight", "scale", "counters"):
            tensor = torch.nn.Parameter(getattr(piece, name), requires_grad=False)
            layer.register_parameter(f"packed_{name}_{number}", tensor)
    return [(piece.n, piece.k, piece.unit) for piece in pieces]


def multiply(
    layer: torch.nn.Module,
    pieces: list[tuple[int, int, float]],
    x: torch.Tensor,
    bias: torch.Tensor | None,
    operator: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Return what a dense operator makes of x and the packed pieces of a layer, side by side, plus the bias."""
    n, k, unit = pieces[0]
    out = operator(x, layer.packed_weight_0, layer.packed_scale_0, layer.packed_counters_0, n, k, unit)
    if len(pieces) > 1:
        outs = [out]
        for number, constants in enumerate(pieces[1:], 1):
            tensors = [getattr(layer, f"packed_{part}_{number}") for part in ("weight", "scale", "counters")]
            outs.append(operator(x, *tensors, *constants))
        out = torch.cat(outs, dim=-1)
    return out if bias is None else out + bias
