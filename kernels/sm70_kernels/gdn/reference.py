"""What the gated delta net's operators compute, in plain torch: FP32 inside, or FP64 where input or state is FP64.

Only what is stored is rounded: outputs to `out`'s type, states to theirs. The arguments are those of the operators
(`sm70_kernels.gdn.operator`), checked there.
"""

from __future__ import annotations

import torch

from sm70_kernels.gdn.recurrence import (
    CHUNK,
    Tokens,
    chunked,
    convolved,
    gates,
    heads_of,
    logged_step,
    replay,
    step,
)
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
    wide, rows = _wide(mixed_qkv, ssm_state), state_indices.shape[1]
    count = query_start_loc[1:] - query_start_loc[:-1]
    accepted = num_accepted_tokens.clamp(1, rows).long()
    begun = state_indices.gather(1, accepted[:, None] - 1)[:, 0]
    impossible = (count > rows) | (accepted != num_accepted_tokens)
    real = (count > 0) & (state_indices[:, 0] >= 0) & (begun >= 0)
    layer = (mixed_qkv, b, a, conv_state, conv_weight, A_log, dt_bias)
    present = (torch.arange(rows, device=count.device) < count[:, None]) & (real & ~impossible)[:, None]
    tokens = _verified(
        *layer, query_start_loc, state_indices[:, 0], accepted, present, (key_heads, ssm_state.shape[-1]), wide
    )

    state, results = ssm_state.index_select(0, begun.clamp(min=0)).to(wide), []
    for row in range(rows):
        state, result = step(state, tokens.at(row))
        slots = state_indices[:, row]
        write_rows(ssm_state, (slots.clamp(min=0).long(),), state, present[:, row] & (slots >= 0))
        results.append(result)
    _hand_out(torch.stack(results, dim=1), present, real & impossible, query_start_loc, out)


def gdn_verify_log(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    log: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    num_replayed_rows: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    """Take up to `rows` tokens a sequence, keep the state before them and a log of what they do to it.

    Waits for nothing: may be captured in a CUDA graph. What cannot be makes the sequence's outputs NaN and changes
    nothing else: more rows or accepted tokens than the log holds, or rows to replay that are not those accepted.
    """
    wide, rows = _wide(mixed_qkv, ssm_state), log.shape[1]
    heads, key_head = ssm_state.shape[1], ssm_state.shape[3]
    count = query_start_loc[1:] - query_start_loc[:-1]
    accepted, replayed = num_accepted_tokens.clamp(1, rows).long(), num_replayed_rows
    impossible = (count > rows) | (accepted != num_accepted_tokens)
    impossible |= (replayed != accepted) & ~((replayed == 0) & (accepted == 1))
    real = (count > 0) & (state_indices >= 0)
    present = (torch.arange(rows, device=count.device) < count[:, None]) & (real & ~impossible)[:, None]
    layer = (mixed_qkv, b, a, conv_state, conv_weight, A_log, dt_bias)
    tokens = _verified(
        *layer, query_start_loc, state_indices, accepted, present, (key_heads, ssm_state.shape[-1]), wide
    )

    base = state_indices.clamp(min=0).long()
    state = ssm_state.index_select(0, base).to(wide)
    before = log.index_select(0, base).to(wide)
    key, write, decay = before.split([key_heads * key_head, before.shape[2] - key_heads * key_head - heads, heads], -1)
    key, write = key.unflatten(2, (key_heads, key_head)), write.unflatten(2, (heads, -1))
    for row in range(rows):
        done = replay(state, key[:, row], write[:, row], decay[:, row])
        state = torch.where((row < replayed)[:, None, None, None], done, state)
    write_rows(ssm_state, (base,), state, present[:, 0] & (replayed > 0))

    results, entries = [], []
    for row in range(rows):
        token = tokens.at(row)
        state, written, result = logged_step(state, token)
        entries.append(torch.cat((token.k.flatten(1), written.flatten(1), token.g.exp()), dim=1))
        results.append(result)
    entry = torch.where(present[..., None], torch.stack(entries, dim=1), before)
    write_rows(log, (base,), entry, present[:, 0])
    _hand_out(torch.stack(results, dim=1), present, real & impossible, query_start_loc, out)


def _verified(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    query_start_loc: torch.Tensor,
    slots: torch.Tensor,
    accepted: torch.Tensor,
    present: torch.Tensor,
    heads: tuple[int, int],
    wide: torch.dtype,
) -> Tokens:
    """Return what the recurrence takes of each sequence's rows [sequences, rows, …], and move its history on.

    `heads` are the number of key heads and the elements of one.
    """
    rows, width = present.shape[1], conv_weight.shape[1]
    count = query_start_loc[1:] - query_start_loc[:-1]
    numbers = torch.arange(rows, device=count.device)
    token = (query_start_loc[:-1, None] + numbers).clamp(max=mixed_qkv.shape[0] - 1).long()
    base = (slots.clamp(min=0).long(),)
    columns = conv_state[..., : width + rows - 2]
    before = columns.index_select(0, base[0])
    shift = (accepted[:, None] - 1 + torch.arange(width - 1, device=count.device))[:, None]
    history = before.gather(2, shift.expand(-1, before.shape[1], -1))
    window = torch.cat((history.mT.to(wide), mixed_qkv[token].to(wide)), dim=1)
    opened = gates(a[token], b[token], a_log, dt_bias, wide)
    tokens = heads_of(convolved(window, conv_weight.to(wide)), *opened, *heads)
    kept = torch.arange(columns.shape[2], device=count.device) < (count[:, None] + width - 2)
    after = torch.where(kept[:, None], window[:, 1:].mT.to(before.dtype), before)
    write_rows(columns, base, after, present[:, 0])
    return tokens


def _hand_out(
    results: torch.Tensor,
    present: torch.Tensor,
    impossible: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write each sequence's results [sequences, rows, …] to its rows of `out`: zeros for padding, NaN if impossible."""
    result = torch.where(present[..., None, None], results, 0)
    result = result.masked_fill_(impossible[:, None, None, None], torch.nan).to(out.dtype)
    sequence, inside = sequence_of(query_start_loc, out.shape[0])
    row_of = (torch.arange(out.shape[0], device=out.device) - query_start_loc[sequence]).clamp(0, present.shape[1] - 1)
    out.copy_(torch.where(inside[:, None, None], result[sequence, row_of.long()], out))


def _wide(mixed_qkv: torch.Tensor, ssm_state: torch.Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(mixed_qkv.dtype, ssm_state.dtype), torch.float32)
