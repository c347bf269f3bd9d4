"""Prefill attention as decode attention: a prompt's rows in blocks, each with the context that its last row sees.

A block is as many tokens as fill the row tiles of a thread block, so that its keys and values are read once for all of
them. Blocks of a prompt read the same pages at about the same time, out of L2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from sm70_kernels.attention import table

if TYPE_CHECKING:
    from collections.abc import Callable


class Blocks(NamedTuple):
    """Blocks of rows in the form in which decode attention takes sequences."""

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor


def blocks_of(
    block_table: torch.Tensor, seq_lens: torch.Tensor, query_start_loc: torch.Tensor, tokens: int, each: int
) -> Blocks:
    """Cut the rows of sequences into blocks of `each` tokens or fewer; `tokens` is a bound of all rows.

    There are as many blocks as there may be at most; those left over have no rows. Waits for nothing: may be captured.
    """
    sequences = seq_lens.shape[0]
    rows = query_start_loc[1:] - query_start_loc[:-1]
    counts = (rows + each - 1) // each
    ends = counts.cumsum(0)
    number = torch.arange(tokens // each + sequences, device=seq_lens.device)
    sequence = torch.searchsorted(ends, number, right=True).clamp_(max=sequences - 1)
    there = number < ends[-1]
    before = (number - (ends - counts)[sequence]) * each
    own = (rows[sequence] - before).clamp(max=each)
    seen = (seq_lens - rows)[sequence] + before + own
    last = query_start_loc[-1:]
    starts = torch.where(there, query_start_loc[sequence] + before, last)
    return Blocks(
        block_table.index_select(0, sequence),
        torch.where(there, seen, 0).clamp_(min=0).int(),
        torch.cat((starts, last)).int(),
    )


def prefill(
    attend: Callable[..., None],
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
    *softmax: object,
) -> None:
    """Attend with many rows a sequence through `attend`, decode attention by launches (`attention.operator.decode`)."""
    group = query.shape[1] // kv_cache.shape[3]
    each = max(1, table.ROWS * table.MOST_ROW_TILES // group)
    blocks = blocks_of(block_table, seq_lens, query_start_loc, query.shape[0], each)
    tiles = table.row_tiles(each, 1, group)
    attend(query, kv_cache, *blocks, out, *softmax, table.SINGLE, tiles)
