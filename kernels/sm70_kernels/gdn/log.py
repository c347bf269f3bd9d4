"""Which rows of a slot's log its state has not taken yet: one tensor for all layers, kept once a step.

Nothing here waits for the device or has a size that depends on values.
"""

from __future__ import annotations

import torch

from sm70_kernels.slots import write_rows

IMPOSSIBLE = -1
"""Replayed rows of a sequence that was told to accept more than it had: its outputs become NaN."""


def begin_round(
    logged: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    rows: int,
) -> torch.Tensor:
    """Return num_replayed_rows int32[sequences] of a verification, and note in `logged` the rows that it will log.

    `logged` is int32[slots], zeros at first. `rows` is the most that a log holds. Padding and empty sequences change
    nothing; so do those that cannot be.
    """
    count = query_start_loc[1:] - query_start_loc[:-1]
    slots = state_indices.clamp(min=0).long()
    before = logged.index_select(0, slots)
    replayed = torch.where(before > 0, num_accepted_tokens, 0)
    possible = (num_accepted_tokens >= 1) & (num_accepted_tokens <= before.clamp(min=1)) & (count <= rows)
    write_rows(logged[:, None], (slots,), count[:, None], (state_indices >= 0) & (count > 0) & possible)
    return torch.where(possible, replayed, IMPOSSIBLE).int()


def forget(logged: torch.Tensor, state_indices: torch.Tensor) -> None:
    """Note that the states in these slots are complete, after a prefill or a copy into them; negative ones are none."""
    slots = state_indices.clamp(min=0).long()
    write_rows(logged[:, None], (slots,), torch.zeros_like(state_indices)[:, None], state_indices >= 0)
