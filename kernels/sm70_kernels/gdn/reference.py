"""What the gated delta net's operators compute, in plain torch: FP32 inside, or FP64 where input or state is FP64.

Only what is stored is rounded: outputs to `out`'s type, states to theirs. The arguments are those of the operators
(`sm70_kernels.gdn.operator`), checked there.
"""

from __future__ import annotations

import torch

from sm70_kernels.gdn.recurrence import CHUNK, Tokens, chunked, convolved, gates, heads_of, step
from sm70_kernels.slots import sequence_of, write_rows

PIECE = 16 * CHUNK
"""Tokens of a prompt that are worked at a time: it bounds the memory. A multiple of CHUNK."""


def gdn_decode(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    state_indices: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    """Take one token a sequence. Waits for nothing: may be captured in a CUDA graph."""
    wide = _wide(mixed_qkv, ssm_state)
    valid, slots = state_indices >= 0, (state_indices.clamp(min=0).long(),)
    columns = conv_state[..., : conv_weight.shape[1] - 1]
    window = torch.cat((columns.index_select(0, slots[0]).mT.to(wide), mixed_qkv[:, None].to(wide)), dim=1)
    x = convolved(window, conv_weight.to(wide))[:, 0]
    token = heads_of(x, *gates(a, b, A_log, dt_bias, wide), key_heads, ssm_state.shape[-1])
    state, result = step(ssm_state.index_select(0, slots[0]).to(wide), token)
    write_rows(columns, slots, window[:, 1:].mT, valid)
    write_rows(ssm_state, slots, state, valid)
    out.copy_(torch.where(valid[:, None, None], result.to(out.dtype), 0))


def gdn_prefill(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    """Take many tokens a sequence, one sequence after the other. Waits for the lengths: not to be captured."""
    wide = _wide(mixed_qkv, ssm_state)
    weight = conv_weight.to(wide)
    bounds, slots, carried = (each.tolist() for each in (query_start_loc, state_indices, has_initial_state))
    for number, slot in enumerate(slots):
        start, stop = bounds[number], bounds[number + 1]
        if slot < 0 or start == stop:
            out[start:stop] = 0
            continue
        columns = conv_state[slot, :, : weight.shape[1] - 1]
        if carried[number]:
            history, state = columns.mT.to(wide), ssm_state[slot].to(wide)
        else:
            history = torch.zeros_like(columns.mT, dtype=wide)
            state = torch.zeros_like(ssm_state[slot], dtype=wide)
        for first in range(start, stop, PIECE):
            piece = slice(first, min(first + PIECE, stop))
            window = torch.cat((history, mixed_qkv[piece].to(wide)))
            history = window[window.shape[0] - history.shape[0] :]
            opened = gates(a[piece], b[piece], A_log, dt_bias, wide)
            tokens = heads_of(convolved(window, weight), *opened, key_heads, ssm_state.shape[-1])
            state, result = chunked(state, tokens)
            out[piece] = result.to(out.dtype)
        columns.copy_(history.mT)
        ssm_state[slot] = state.to(ssm_state.dtype)


def gdn_verify(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    """Take up to `rows` tokens a sequence and keep a state for each.

    Waits for nothing: may be captured in a CUDA graph. Where more rows or accepted tokens are asked for than there are
    slots, the sequence's outputs become NaN and its states stay.
    """
    wide, rows, width = _wide(mixed_qkv, ssm_state), state_indices.shape[1], conv_weight.shape[1]
    count = query_start_loc[1:] - query_start_loc[:-1]
    accepted = num_accepted_tokens.clamp(1, rows).long()
    begun = state_indices.gather(1, accepted[:, None] - 1)[:, 0]
    impossible = (count > rows) | (accepted != num_accepted_tokens)
    real = (count > 0) & (state_indices[:, 0] >= 0) & (begun >= 0)
    numbers = torch.arange(rows, device=count.device)
    present = (numbers < count[:, None]) & (real & ~impossible)[:, None]

    token = (query_start_loc[:-1, None] + numbers).clamp(max=mixed_qkv.shape[0] - 1).long()
    base = (state_indices[:, 0].clamp(min=0).long(),)
    columns = conv_state[..., : width + rows - 2]
    before = columns.index_select(0, base[0])
    shift = (accepted[:, None] - 1 + torch.arange(width - 1, device=count.device))[:, None]
    history = before.gather(2, shift.expand(-1, before.shape[1], -1))
    window = torch.cat((history.mT.to(wide), mixed_qkv[token].to(wide)), dim=1)
    opened = gates(a[token], b[token], A_log, dt_bias, wide)
    tokens = heads_of(convolved(window, conv_weight.to(wide)), *opened, key_heads, ssm_state.shape[-1])
    kept = torch.arange(columns.shape[2], device=count.device) < (count[:, None] + width - 2)
    after = torch.where(kept[:, None], window[:, 1:].mT.to(before.dtype), before)
    write_rows(columns, base, after, present[:, 0])

    state, results = ssm_state.index_select(0, begun.clamp(min=0)).to(wide), []
    for row in range(rows):
        state, result = step(state, Tokens(*(getattr(tokens, name)[:, row] for name in Tokens.__slots__)))
        slots = state_indices[:, row]
        write_rows(ssm_state, (slots.clamp(min=0).long(),), state, present[:, row] & (slots >= 0))
        results.append(result)
    result = torch.where(present[..., None, None], torch.stack(results, dim=1), 0)
    result = result.masked_fill_((real & impossible)[:, None, None, None], torch.nan).to(out.dtype)

    sequence, inside = sequence_of(query_start_loc, out.shape[0])
    row_of = (torch.arange(out.shape[0], device=count.device) - query_start_loc[sequence]).clamp(0, rows - 1)
    out.copy_(torch.where(inside[:, None, None], result[sequence, row_of.long()], out))


def _wide(mixed_qkv: torch.Tensor, ssm_state: torch.Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(mixed_qkv.dtype, ssm_state.dtype), torch.float32)
