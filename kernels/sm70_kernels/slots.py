"""Rows read from and written to numbered places in a cache, where a negative number means padding.

Nothing here waits for the device or has a size that depends on values: all of it may be captured in a CUDA graph.
"""

from __future__ import annotations

import torch


def write_rows(target: torch.Tensor, index: tuple[torch.Tensor, ...], rows: torch.Tensor, valid: torch.Tensor) -> None:
    """Write `rows[i]` to `target[index[0][i], index[1][i], …]` wherever `valid[i]`; nothing else in `target` changes.

    The index must lie inside `target` for rows that are not valid too. Valid rows go to places that differ.
    """
    if not rows.shape[0]:
        return
    rows = rows.to(target.dtype)
    if valid.device.type == "cpu" and bool(valid.all()):
        _put(target, index, rows)
        return
    # A padding row repeats the first valid one, so that two writes to one place carry the same bits.
    numbers = torch.arange(rows.shape[0], device=valid.device)
    source = torch.where(valid, numbers, valid.int().argmax())
    places = tuple(each[source] for each in index)
    _put(target, places, torch.where(valid.any(), rows.index_select(0, source), target[places]))


def _put(target: torch.Tensor, index: tuple[torch.Tensor, ...], rows: torch.Tensor) -> None:
    if len(index) == 1:
        # On a CPU ten times as fast as index_put_.
        target.index_copy_(0, index[0], rows)
    else:
        target.index_put_(index, rows)


def sequence_of(query_start_loc: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's sequence number int64[tokens] and whether it has one; where not, the number is the last's.

    `query_start_loc` is [sequences + 1]; tokens at or beyond its last entry belong to no sequence.
    """
    numbers = torch.arange(tokens, device=query_start_loc.device, dtype=query_start_loc.dtype)
    sequence = torch.searchsorted(query_start_loc[1:].contiguous(), numbers, right=True)
    return sequence.clamp(max=query_start_loc.shape[0] - 2), numbers < query_start_loc[-1]
