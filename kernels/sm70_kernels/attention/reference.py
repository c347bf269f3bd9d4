"""What the attention operators compute, in plain torch: FP32 inside, or FP64 where the query is FP64.

The KV cache is walked in tiles with an online softmax, so that memory does not grow with the context. The arguments are
those of the operators (`sm70_kernels.attention.operator`), checked there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sm70_kernels.attention.kv_format import decoded, encoded
from sm70_kernels.attention.pack import TILE, tiles_of, untiled
from sm70_kernels.slots import sequence_of, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Tiling:
    """How much is worked at a time: KV positions, and elements of gathered keys or of scores."""

    positions: int
    elements: int


CPU = Tiling(positions=128, elements=1 << 20)
CUDA = Tiling(positions=1024, elements=1 << 24)


def kv_cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Store keys and values in their slots. Waits for nothing: may be captured in a CUDA graph."""
    count, page_size = slot_mapping.shape[0], kv_cache.shape[2]
    slots = slot_mapping.clamp(min=0)
    index = (torch.div(slots, page_size, rounding_mode="floor"), slots % page_size)
    for half, rows, scale in ((0, key, k_scale), (1, value, v_scale)):
        write_rows(kv_cache[:, half], index, encoded(rows[:count], kv_dtype, scale), slot_mapping >= 0)


class _Rows:
    """The running softmax of some query rows: the greatest score, the sum and the weighted sum of values so far."""

    def __init__(self, query: torch.Tensor) -> None:
        """Begin for `query` [batch, Hkv, rows, D], scaled."""
        self._query = query
        self._greatest = query.new_full((*query.shape[:-1], 1), -torch.inf)
        self._sum = query.new_zeros((*query.shape[:-1], 1))
        self._weighted = torch.zeros_like(query)

    def take(self, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor | None) -> None:
        """Take in keys and values [batch, Hkv, tile, D]; `visible` is broadcast to [batch, Hkv, rows, tile].

        None means that all of it is visible.
        """
        scores = self._query @ keys.mT
        if visible is not None:
            scores.masked_fill_(~visible, -torch.inf)
        greatest = torch.maximum(self._greatest, scores.amax(-1, keepdim=True))
        weights = scores.sub_(greatest).exp_()
        shrink = (self._greatest - greatest).exp_()
        self._sum = self._sum * shrink + weights.sum(-1, keepdim=True)
        self._weighted = self._weighted * shrink + weights @ values
        self._greatest = greatest

    def result(self) -> torch.Tensor:
        return self._weighted / self._sum


def attention_decode(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    packed: bool = False,
) -> None:
    """Attend with few rows a sequence, all rows at once.

    While a CUDA graph is captured it waits for nothing and walks the whole block table. Elsewhere it asks for the
    longest sequence and stops there; the tiles beyond change no bits.
    """
    tokens, heads, head = query.shape
    if not tokens or not seq_lens.shape[0]:
        return
    kv_heads = kv_cache.shape[3]
    sequence, inside = sequence_of(query_start_loc, tokens)
    ends = query_start_loc[1:].long()
    after = ends[sequence] - 1 - torch.arange(tokens, device=query.device)
    lengths = torch.where(inside, seq_lens.long()[sequence] - after, 0)
    longest = block_table.shape[1] * kv_cache.shape[2]
    if not (query.is_cuda and torch.cuda.is_current_stream_capturing()):
        longest = min(longest, int(lengths.max()))
    wide = _wide(query, scale, k_scale, kv_dtype).view(tokens, kv_heads, heads // kv_heads, head)
    tiling = CUDA if query.is_cuda else CPU
    at_once = max(1, tiling.elements // (tiling.positions * kv_heads * head))
    for first in range(0, tokens, at_once):
        part = slice(first, first + at_once)
        rows, pages = _Rows(wide[part]), block_table.index_select(0, sequence[part])
        for positions, keys, values in _tiles(kv_cache, pages, lengths[part], longest, kv_dtype, wide.dtype, packed):
            rows.take(keys, values, (positions < lengths[part, None])[:, None, None])
        done = _scaled(rows.result(), v_scale, kv_dtype).view(-1, heads, head).to(out.dtype)
        done = torch.where((lengths[part] > 0)[:, None, None], done, 0)
        out[part] = torch.where(inside[part, None, None], done, out[part])


def attention_prefill(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    kv_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    packed: bool = False,
) -> None:
    """Attend with many rows a sequence, one sequence after the other. Waits for the lengths: not to be captured.

    `packed` says that the cache lies in the order of a GPU (`attention.pack`).
    """
    heads, head = query.shape[1:]
    kv_heads = kv_cache.shape[3]
    group = heads // kv_heads
    tiling = CUDA if query.is_cuda else CPU
    at_once = max(1, tiling.elements // (tiling.positions * heads))
    bounds = query_start_loc.tolist()
    for number, length in enumerate(seq_lens.tolist()):
        computed = length - (bounds[number + 1] - bounds[number])
        pages, held = block_table[number, None], seq_lens[number, None].long()
        for first in range(bounds[number], bounds[number + 1], at_once):
            last = min(first + at_once, bounds[number + 1])
            if length <= 0:
                out[first:last] = 0
                continue
            wide = _wide(query[first:last], scale, k_scale, kv_dtype)
            rows = _Rows(wide.view(-1, kv_heads, group, head).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, head))
            # Row i of the sequence sees computed + i + 1 positions.
            nearest, end = computed + first - bounds[number] + 1, computed + last - bounds[number]
            reach = torch.arange(nearest, end + 1, device=query.device)
            stop = 0
            for positions, keys, values in _tiles(kv_cache, pages, held, end, kv_dtype, wide.dtype, packed):
                stop += positions.shape[0]
                visible = None if stop <= nearest else (positions < reach[:, None]).repeat(group, 1)
                rows.take(keys, values, visible)
            done = rows.result().view(kv_heads, group, -1, head).permute(2, 0, 1, 3).reshape(-1, heads, head)
            done = torch.where((reach > 0)[:, None, None], done, 0)
            out[first:last] = _scaled(done, v_scale, kv_dtype).to(out.dtype)


def _wide(query: torch.Tensor, scale: float, k_scale: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    """Return the query in the type that is worked in, times the softmax scale and the keys' scale."""
    wide = query.to(torch.promote_types(query.dtype, torch.float32)) * scale
    return wide if kv_dtype == "auto" else wide * k_scale.reshape(())


def _scaled(result: torch.Tensor, v_scale: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    return result if kv_dtype == "auto" else result * v_scale.reshape(())


def _tiles(
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    end: int,
    kv_dtype: str,
    dtype: torch.dtype,
    packed: bool = False,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield positions, and keys and values [batch, Hkv, positions, D], from 0 until `end` is reached.

    `block_table` is [batch, max_pages] and `lengths` [batch]. A tile is as many whole pages as fit into it, or a part
    of a page; it depends on nothing else, so that neighbours in a batch change no bits. Beyond a sequence's length its
    values are zero and its keys of no meaning, whatever stands in the table and in the cache.
    """
    page_size, batch = kv_cache.shape[2], block_table.shape[0]
    tile = (CUDA if kv_cache.is_cuda else CPU).positions
    at_once = max(1, tile // page_size)
    for first in range(0, -(-end // page_size), at_once):
        columns = torch.arange(first, first + at_once, device=kv_cache.device)
        entries = block_table.index_select(1, columns.clamp(max=block_table.shape[1] - 1))
        pages = torch.where(columns * page_size < lengths[:, None], entries, 0).flatten()
        for begin in range(0, page_size, tile):
            offsets = torch.arange(begin, min(begin + tile, page_size), device=kv_cache.device)
            positions = (columns[:, None] * page_size + offsets).flatten()
            if first * page_size + begin >= end:
                return
            if packed:
                tiles = tiles_of(kv_cache)[:, :, :, begin // TILE : (begin + tile) // TILE]
                part = untiled(tiles.index_select(0, pages), kv_cache.shape[4])
            else:
                part = kv_cache[:, :, begin : begin + tile].index_select(0, pages)
            parts = part.unflatten(0, (batch, at_once)).permute(2, 0, 4, 1, 3, 5)
            keys, values = decoded(parts, kv_dtype, dtype).flatten(3, 4).unbind(0)
            held = positions < lengths[:, None]
            if kv_cache.is_cuda or not bool(held.all()):
                values.masked_fill_(~held[:, None, :, None], 0)
            yield positions, keys, values
