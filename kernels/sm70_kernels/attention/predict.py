"""How attention is launched in a step: grid, parameters, and which buffers come from DRAM. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sm70_kernels import qwen38
from sm70_kernels.attention import table
from sm70_kernels.predict.launch import Buffer, Launch, activations, integers
from sm70_kernels.predict.work import Planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.attention.table import Variant
    from sm70_kernels.predict.work import Step

FAMILY = "attention"
CONTEXT = 2048
"""Tokens of each sequence in a step of which nobody says how long they are."""
PAGES = {0: 784, 1: 1568, 2: 1568}
"""Tokens of a page at four ranks, by format (docs/volta.md, "Decode attention")."""


class Batch(NamedTuple):
    """What a launch attends to: `sequences` of `length` tokens with the `rows` new ones, on a rank's heads."""

    sequences: int
    length: int
    rows: int = 1
    kv_format: int = table.FORMATS["auto"]
    kv_heads: int = 1
    group: int = qwen38.QUERY_HEADS // qwen38.KEY_HEADS
    head: int = qwen38.HEAD

    @property
    def tokens(self) -> int:
        """All new rows."""
        return self.sequences * self.rows

    @property
    def shape(self) -> str:
        """The batch in words."""
        return f"sequences={self.sequences} length={self.length} rows={self.rows} format={self.kv_format}"


def launches(step: Step) -> Iterator[Planned]:
    """Yield the writer, attention and its reduction where each sequence decodes a row after CONTEXT tokens in FP16."""
    kv_heads = max(1, qwen38.KEY_HEADS // step.ranks)
    group = qwen38.QUERY_HEADS // step.ranks // kv_heads
    batch = Batch(step.tokens, CONTEXT, kv_heads=kv_heads, group=group)
    if not step.decodes:
        return  # Its time hangs on a context that a step does not tell: see `prefill`.
    yield write(batch)
    yield from attend(batch)


def write(batch: Batch) -> Planned:
    """Return the writer of a batch's new keys and values."""
    spec = table.write(batch.kv_format, batch.head)
    size = 2 if batch.kv_format == 0 else 1
    rows = batch.tokens * batch.kv_heads * batch.head
    page = PAGES[batch.kv_format]
    half = page * batch.kv_heads * batch.head * size
    # One slot a sequence, each in a page of its own: nothing goes out by whole tiles.
    slots = integers((number * page + 5 for number in range(batch.tokens)), 8)
    arguments = (
        *(Buffer(2 * rows * size), activations(2 * rows), activations(2 * rows), slots),
        *(Buffer(4), Buffer(4), batch.tokens, page, 2 * half, half),
        *(batch.kv_heads * batch.head, batch.head) * 2,
    )
    grid = (-(-batch.tokens // table.TILE), batch.kv_heads, 1)
    launch = Launch(grid, arguments, batch.shape)
    return Planned("kv_cache_write", FAMILY, qwen38.ATTENTION_LAYERS, spec, launch)


def attend(batch: Batch, variant: Variant | None = None) -> Iterator[Planned]:
    """Yield the launches that attend, by a variant or by the one that serves."""
    heads = batch.kv_heads * batch.group
    size = 2 if batch.kv_format == 0 else 1
    tiles = table.row_tiles(batch.tokens, batch.sequences, batch.group)
    chosen = variant or table.variant(batch.sequences, tiles, batch.head)
    spec = table.decode(batch.kv_format, batch.head, tiles, chosen)
    most, least = table.partitions(batch.sequences, batch.kv_heads)
    page = PAGES[batch.kv_format]
    pages = -(-batch.length // page)
    whole = -(-batch.length // table.TILE)
    used = max(1, min(most, -(-whole // least)))
    rows = activations(2 * batch.tokens * heads * batch.head)
    partials = Buffer(4 * used * batch.tokens * heads * batch.head if most > 1 else 0)
    states = Buffer(8 * used * batch.tokens * heads if most > 1 else 0)
    lengths = integers((batch.length,) * batch.sequences)
    starts = integers(batch.rows * each for each in range(batch.sequences + 1))
    numbers = integers(range(batch.sequences * pages))
    context = Buffer(2 * batch.sequences * batch.length * batch.kv_heads * batch.head * size, cold=True)
    half = page * batch.kv_heads * batch.head * size // 16
    strides = (heads * batch.head, batch.head) * 2
    arguments = (
        *(rows, partials, states, rows, context, numbers, lengths, starts, Buffer(4), Buffer(4)),
        *(batch.head**-0.5, batch.group, batch.tokens, least, page // table.TILE, pages),
        *(2 * half, half // batch.kv_heads, half, *strides),
    )
    # Partitions that a short context leaves over end at once; they are not in the grid here.
    sample = tuple((part, 0, 0) for part in sorted({0, used // 2, used - 1}))
    products = 2 * batch.tokens * heads * batch.length * batch.head
    launch = Launch((used, batch.kv_heads, batch.sequences), arguments, batch.shape, sample, products=products)
    yield Planned("attention_decode", FAMILY, qwen38.ATTENTION_LAYERS, spec, launch)
    if most > 1:
        reduction = table.reduction(batch.head)
        given = (rows, partials, states, lengths, starts, batch.sequences, batch.tokens, used, least, *strides[:2])
        yield Planned(
            *("attention_reduce", FAMILY, qwen38.ATTENTION_LAYERS, reduction),
            Launch((batch.tokens, heads, 1), given, batch.shape),
        )


def prefill(batch: Batch) -> Planned:
    """Return the kernel that attends with a prefill chunk of each sequence."""
    heads, size = batch.kv_heads * batch.group, 2 if batch.kv_format == 0 else 1
    page = PAGES[batch.kv_format]
    pages = -(-batch.length // page)
    rows = activations(2 * batch.tokens * heads * batch.head)
    half = page * batch.kv_heads * batch.head * size // 16
    arguments = (
        *(rows, rows, Buffer(2 * batch.sequences * batch.length * batch.kv_heads * batch.head * size, cold=True)),
        *(integers(range(batch.sequences * pages)), integers((batch.length,) * batch.sequences)),
        integers(batch.rows * each for each in range(batch.sequences + 1)),
        *(Buffer(4), Buffer(4), batch.head**-0.5, batch.group, batch.sequences, page // table.TILE, pages),
        *(2 * half, half // batch.kv_heads, half, *(heads * batch.head, batch.head) * 2),
    )
    # Of the grid, the blocks that have rows; the one in the middle sees as much as they do on average.
    blocks = batch.sequences * -(-batch.rows * batch.group // table.PREFILL_ROWS)
    seen = batch.length - (batch.rows - 1) / 2
    products = round(2 * batch.tokens * heads * seen * batch.head)
    launch = Launch((blocks, batch.kv_heads, 1), arguments, batch.shape, ((blocks // 2, 0, 0),), products=products)
    return Planned(
        *("attention_prefill", FAMILY, qwen38.ATTENTION_LAYERS),
        *(table.prefill(batch.kv_format, batch.head), launch),
    )
