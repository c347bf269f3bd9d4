"""How the gated delta net is launched in a step: grid, parameters, what comes from DRAM. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels import qwen38
from sm70_kernels.gdn import table
from sm70_kernels.hardware import L2_BYTES
from sm70_kernels.predict.launch import Buffer, Launch, activations, integers
from sm70_kernels.predict.work import Planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.predict.work import Step
    from sm70_kernels.registry import Specialisation


def launches(step: Step) -> Iterator[Planned]:
    """Yield the recurrence of a step: one token of every sequence, or a prompt's tokens."""
    key_heads, heads = qwen38.GDN_KEY_HEADS // step.ranks, qwen38.GDN_HEADS // step.ranks
    if not step.decodes:
        for spec, launch in zip(table.prefill(), prefill(1, step.tokens, key_heads, heads), strict=True):
            yield Planned(spec.kernel.name, "gdn", qwen38.GDN_LAYERS, spec, launch)
        return
    spec = table.decode(step.tokens * heads)
    yield Planned("gdn_decode", "gdn", qwen38.GDN_LAYERS, spec, decode(spec, step.tokens, key_heads, heads))


def decode(spec: Specialisation, sequences: int, key_heads: int, heads: int) -> Launch:
    """One token of each sequence."""
    head = table.HEAD
    channels = (2 * key_heads + heads) * head
    columns, taps = spec.constants["COLUMNS"], table.WIDTH
    gate = activations(2 * sequences * heads)
    args = (
        *(activations(2 * sequences * heads * head), activations(2 * sequences * channels), gate, gate),
        *(Buffer(2 * sequences * channels * (taps - 1), cold=True), Buffer(2 * channels * taps, cold=True)),
        # Read once and written once.
        Buffer(2 * 4 * sequences * heads * head * head, cold=True),
        *(Buffer(4 * heads, cold=True), Buffer(2 * heads, cold=True)),
        *(integers(range(sequences)), Buffer(8 * sequences * key_heads)),
        *(key_heads, heads, sequences, 0),
        *(channels, heads, heads, channels * (taps - 1), channels, heads * head * head),
    )
    grid = (head // columns, heads, sequences)
    shape = f"sequences={sequences} heads={key_heads}+{heads}"
    return Launch(grid, args, shape, closing=0)


def verify(spec: Specialisation, sequences: int, rows: int, replayed: int, key_heads: int, heads: int) -> Launch:
    """Check `rows` rows of each sequence, of whose last round `replayed` rows were accepted."""
    head, tokens = table.HEAD, sequences * rows
    channels = (2 * key_heads + heads) * head
    columns, taps = spec.constants["COLUMNS"], table.WIDTH
    history, width = taps + rows - 2, table.log_width(key_heads, heads)
    gate = activations(2 * tokens * heads)
    passes = 2 if replayed else 1
    args = (
        *(activations(2 * tokens * heads * head), activations(2 * tokens * channels), gate, gate),
        *(Buffer(2 * sequences * channels * (taps - 1), cold=True), Buffer(2 * channels * taps, cold=True)),
        Buffer(passes * 4 * sequences * heads * head * head, cold=True),
        *(Buffer(4 * heads, cold=True), Buffer(2 * heads, cold=True)),
        Buffer(4 * sequences * (rows + replayed) * width, cold=True),
        integers(range(0, tokens + 1, rows)),
        integers(range(sequences)),
        integers([max(1, replayed)] * sequences),
        integers([replayed] * sequences),
        Buffer(4 * sequences * table.verify_tickets(key_heads, heads)),
        *(key_heads, heads, sequences, 0, tokens, rows),
        *(channels, heads, heads, channels * history, channels, heads * head * head, rows * width),
    )
    grid = (head // columns, heads, sequences)
    return Launch(
        grid, args, f"sequences={sequences} rows={rows} replayed={replayed} heads={key_heads}+{heads}", closing=0
    )


def prefill(sequences: int, length: int, key_heads: int, heads: int) -> tuple[Launch, Launch]:
    """Take `length` tokens of each sequence, all of which begin anew: the launches of both kernels."""
    head, tokens, taps = table.HEAD, sequences * length, table.WIDTH
    channels = (2 * key_heads + heads) * head
    chunks = table.prefill_chunks(tokens, sequences)
    key_bytes, value_bytes = (chunks * each for each in table.chunk_bytes(key_heads, heads))
    keys, values = Buffer(key_bytes, cold=key_bytes + value_bytes > L2_BYTES), Buffer(value_bytes, cold=True)
    mixed, gate = activations(2 * tokens * channels), activations(2 * tokens * heads)
    history = Buffer(2 * sequences * channels * (taps - 1), cold=True)
    where = (integers(range(0, tokens + 1, length)), integers(range(sequences)), integers([0] * sequences, 1))
    weights = (Buffer(2 * channels * taps, cold=True), Buffer(4 * heads, cold=True), Buffer(2 * heads, cold=True))
    shape = f"sequences={sequences} length={length} heads={key_heads}+{heads}"
    conv = (channels * (taps - 1), channels)
    first = Launch(
        (chunks, key_heads, 1),
        (
            *(keys, values, mixed, gate, gate, history, *weights, *where),
            *(sequences, key_heads, heads, sequences, 0, tokens, 0, channels, heads, heads, *conv),
        ),
        shape,
        closing=0,
    )
    states = Buffer(2 * 4 * sequences * heads * head * head, cold=True)
    out = activations(2 * tokens * heads * head)
    second = Launch(
        (head // table.CHUNK_COLUMNS, heads, sequences),
        (
            *(out, keys, values, mixed, history, states, *where),
            *(key_heads, heads, sequences, tokens, 0, chunks, channels, *conv, heads * head * head),
        ),
        shape,
        closing=0,
    )
    return first, second
