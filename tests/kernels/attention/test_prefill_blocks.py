"""A prompt's rows in blocks: which rows, which pages, and how much of the context each block sees."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.attention.prefill import blocks_of


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [
        ((1,), (1,)),
        ((20, 8, 3), (20, 100, 64)),
        ((0, 9, 0), (5, 9, 0)),
        # A padding sequence has rows and sees nothing.
        ((4, 17), (0, 40)),
    ],
    ids=str,
)
def test_blocks_hold_every_row_once_and_see_what_their_last_row_sees(
    rows: tuple[int, ...], lengths: tuple[int, ...]
) -> None:
    starts = integers(0, *torch.tensor(rows).cumsum(0).tolist())
    table = torch.arange(len(rows), dtype=torch.int32)[:, None] * 10 + torch.arange(3, dtype=torch.int32)
    # Two rows beyond the last sequence belong to nobody.
    blocks = blocks_of(table, integers(*lengths), starts, sum(rows) + 2, 8)
    assert {each.dtype for each in blocks} == {torch.int32}
    assert blocks.block_table.shape[0] == blocks.seq_lens.shape[0] == blocks.query_start_loc.shape[0] - 1
    found = {}
    for number, (first, last) in enumerate(zip(blocks.query_start_loc[:-1], blocks.query_start_loc[1:], strict=True)):
        assert 0 <= int(last - first) <= 8
        for row in range(int(first), int(last)):
            assert row not in found
            # How far the row sees, as decode attention has it: rows are the last of their block's context.
            sees = int(blocks.seq_lens[number]) - int(last) + row + 1
            found[row] = (blocks.block_table[number].tolist(), max(sees, 0) if blocks.seq_lens[number] else 0)
    wanted = {}
    for sequence, (count, length) in enumerate(zip(rows, lengths, strict=True)):
        for row in range(count):
            sees = length - count + row + 1 if length else 0
            wanted[int(starts[sequence]) + row] = (table[sequence].tolist(), sees)
    assert found == wanted
