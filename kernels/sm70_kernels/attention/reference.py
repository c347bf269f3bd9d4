"""What the attention operators compute, in plain torch: FP32 inside, or FP64 where the query is FP64.

The KV cache is walked in tiles with an online softmax, so that memory does not grow with the context. The arguments are
those of the operators (`sm70_kernels.attention.operator`), checked there.
"""

from __future__ import annotations

import torch

from sm70_kernels.attention.kv_format import decoded, encoded
from sm70_kernels.slots import sequence_of, write_rows

TILE = {"cpu": 128}
"""KV positions that are worked at a time. It depends on nothing else, so that neighbours in a batch change no bits."""

TILE_ELSEWHERE = 1024

WORK_ELEMENTS = 1 << 23
"""Of gathered keys, and of scores, at a time: 32 MiB in FP32."""


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

    def take(self, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor) -> None:
        """Take in keys and values [batch, Hkv, tile, D]; `visible` is broadcast to [batch, Hkv, rows, tile]."""
        scores = (self._query @ keys.transpose(-1, -2)).masked_fill_(~visible, -torch.inf)
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
    tile = TILE.get(query.device.type, TILE_ELSEWHERE)
    wide = _wide(query, scale, k_scale, kv_dtype).view(tokens, kv_heads, heads // kv_heads, head)
    at_once = max(1, WORK_ELEMENTS // (tile * kv_heads * head))
    for first in range(0, tokens, at_once):
        part = slice(first, first + at_once)
        rows = _Rows(wide[part])
        for start in range(0, longest, tile):
            positions = torch.arange(start, start + tile, device=query.device)
            visible = positions < lengths[part, None]
            keys, values = _gathered(kv_cache, block_table[sequence[part]], positions, visible, kv_dtype, wide.dtype)
            rows.take(keys, values, visible[:, None, None])
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
) -> None:
    """Attend with many rows a sequence, one sequence after the other. Waits for the lengths: not to be captured."""
    heads, head = query.shape[1:]
    kv_heads = kv_cache.shape[3]
    group = heads // kv_heads
    tile = TILE.get(query.device.type, TILE_ELSEWHERE)
    at_once = max(1, WORK_ELEMENTS // (tile * heads))
    bounds, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for number, length in enumerate(lengths):
        computed = length - (bounds[number + 1] - bounds[number])
        for first in range(bounds[number], bounds[number + 1], at_once):
            last = min(first + at_once, bounds[number + 1])
            if length <= 0:
                out[first:last] = 0
                continue
            wide = _wide(query[first:last], scale, k_scale, kv_dtype)
            grouped = wide.view(-1, kv_heads, group, head).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, head)
            rows = _Rows(grouped)
            reach = computed + torch.arange(first - bounds[number] + 1, last - bounds[number] + 1, device=query.device)
            end = computed + last - bounds[number]
            for start in range(0, end, tile):
                positions = torch.arange(start, min(start + tile, end), device=query.device)
                held = positions[None] < length
                keys, values = _gathered(kv_cache, block_table[number, None], positions, held, kv_dtype, wide.dtype)
                visible = positions < reach[:, None]
                rows.take(keys, values, visible.repeat(group, 1))
            done = rows.result().view(kv_heads, group, -1, head).permute(2, 0, 1, 3).reshape(-1, heads, head)
            done = torch.where((reach > 0)[:, None, None], done, 0)
            out[first:last] = _scaled(done, v_scale, kv_dtype).to(out.dtype)


def _wide(query: torch.Tensor, scale: float, k_scale: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    """Return the query in the type that is worked in, times the softmax scale and the keys' scale."""
    wide = query.to(torch.promote_types(query.dtype, torch.float32)) * scale
    return wide if kv_dtype == "auto" else wide * k_scale.reshape(())


def _scaled(result: torch.Tensor, v_scale: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    return result if kv_dtype == "auto" else result * v_scale.reshape(())


def _gathered(
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    positions: torch.Tensor,
    held: torch.Tensor,
    kv_dtype: str,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values [batch, Hkv, positions, D] of rows [batch, max_pages] of the block table.

    Both are zero where `held` [batch, positions] is false, whatever stands in the table and in the cache.
    """
    page_size = kv_cache.shape[2]
    columns = torch.div(positions, page_size, rounding_mode="floor").clamp(max=block_table.shape[1] - 1)
    pages = torch.where(held, block_table[:, columns], 0).long()
    offsets = (positions % page_size).expand(pages.shape)
    both = kv_cache.transpose(1, 2)[pages, offsets].masked_fill_(~held[..., None, None, None], 0)
    keys, values = decoded(both, kv_dtype, dtype).permute(2, 0, 3, 1, 4).unbind(0)
    return keys, values
