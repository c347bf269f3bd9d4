"""Which specialisation serves attention, and into how many partitions a context is cut. Pure tables.

Formats are numbers: 0 halves, 1 E4M3, 2 E5M2 (csrc/attention/layout.cuh).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from sm70_kernels import qwen38
from sm70_kernels.registry import Kernel, Specialisation

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITE = Kernel(
    "kv_cache_write",
    source="attention/kv_cache_write.cu",
    entry="kv_cache_write",
    params="PPPPPPiiqqqqqq",
    constants=("THREADS", "FORMAT", "D"),
)
DECODE = Kernel(
    "attention_decode",
    source="attention/decode.cu",
    entry="attention_decode",
    params="PPPPPPPPPPfiiiiiIIIqqqq",
    constants=("THREADS", "FORMAT", "D", "MT", "RESIDENT", "SHARED"),
)
REDUCE = Kernel(
    "attention_reduce",
    source="attention/reduce.cu",
    entry="attention_reduce",
    params="PPPPPiiiiqq",
    constants=("THREADS", "D", "MOST"),
)
PREFILL = Kernel(
    "attention_prefill",
    source="attention/prefill.cu",
    entry="attention_prefill",
    params="PPPPPPPPfiiiiIIIqqqq",
    constants=("THREADS", "FORMAT", "D", "SHARED"),
)

FORMATS = {"auto": 0, "fp8_e4m3": 1, "fp8_e5m2": 2}
HEADS = (64, 128, 256)
"""Elements of a head for which the kernels are written."""
TILE = 16
"""Tokens of a tile; a page has a whole number of them."""
CHUNK = 8
"""Tiles between two rescalings of the sums."""
ROWS = 8
"""Rows of an m8n8k4 tile."""
MOST_ROW_TILES = 6
"""Row tiles of a thread block: 8 query rows of 6 heads. More rows take another pass over the context."""
PREFILL_ROWS = 64
"""Rows of a thread block of prefill, in which query heads of a KV head count each."""
_PREFILL_WARPS = 8
_PREFILL_COLUMN_GROUPS = 4


class Variant(NamedTuple):
    """Warps of a thread block, and thread blocks that an SM is to hold, which bounds the registers."""

    warps: int
    resident: int


SINGLE = Variant(8, 1)
DUAL = Variant(6, 2)
"""Of one row tile alone. Its bits are those of SINGLE."""
DUAL_FROM = 16
"""Sequences from which DUAL serves (published: 1Cat PR 629, docs/volta.md, "Decode attention")."""


class Partitions(NamedTuple):
    """Into how many partitions a sequence is cut at most, and how many tiles one has at least (except one alone)."""

    most: int
    least: int


# By sequences times KV heads, the first line that is not below. As many thread blocks as SMs, and from 16 on, where two
# are resident, twice as many. On the device a partition gets an even share of the tiles that a sequence has, so that no
# context length is a cliff. Provenance: predicted (NOTES.md).
#    blocks          most least
_PARTITIONS = (
    (   1, Partitions(80, 8)),
    (   2, Partitions(40, 8)),
    (   3, Partitions(26, 8)),
    (   4, Partitions(20, 8)),
    (   5, Partitions(16, 8)),
    (   6, Partitions(13, 8)),
    (   8, Partitions(10, 8)),
    (  10, Partitions( 8, 8)),
    (  13, Partitions( 6, 8)),
    (  15, Partitions( 5, 8)),
    (  16, Partitions(10, 8)),
    (  20, Partitions( 8, 8)),
    (  26, Partitions( 6, 8)),
    (  32, Partitions( 5, 8)),
    (  40, Partitions( 4, 8)),
    (  53, Partitions( 3, 8)),
    (  80, Partitions( 2, 8)),
)  # fmt: skip
_ALONE = Partitions(1, 1)
MOST_PARTITIONS = 80


def partitions(sequences: int, kv_heads: int, split: bool = True) -> Partitions:
    """Return how the contexts of a batch are cut, in one piece each unless `split`; alike for any rows and variant."""
    blocks = sequences * kv_heads if split else _PARTITIONS[-1][0] + 1
    return next((found for most, found in _PARTITIONS if blocks <= most), _ALONE)


def row_tiles(tokens: int, sequences: int, group: int) -> int:
    """Return the row tiles of a thread block where `tokens` rows belong to `sequences` of as many rows each."""
    return min(MOST_ROW_TILES, -(-(-(-tokens // sequences) * group) // ROWS))


def variant(sequences: int, row_tiles: int, head: int, dual_from: int | None = DUAL_FROM) -> Variant:
    """Return which variant serves a batch; None as `dual_from` says that DUAL never does."""
    wide = dual_from is not None and sequences >= dual_from
    return DUAL if row_tiles == 1 and head == qwen38.HEAD and wide else SINGLE


@cache
def write(kv_format: int, head: int) -> Specialisation:
    """Return the kernel that stores keys and values."""
    return Specialisation(WRITE, {"THREADS": head, "FORMAT": kv_format, "D": head})


@cache
def decode(kv_format: int, head: int, row_tiles: int, variant: Variant) -> Specialisation:
    """Return the kernel that attends with up to 8 * `row_tiles` rows of a KV head at a time."""
    # Queries and P with a piece of padding a row, and a float for each row and tile of a chunk.
    shared = ROWS * row_tiles * (16 * (head // 8 + 1) + 16 * (CHUNK * TILE // 8 + 1) + 4 * CHUNK)
    constants = {"THREADS": 32 * variant.warps, "FORMAT": kv_format, "D": head, "MT": row_tiles}
    return Specialisation(DECODE, constants | {"RESIDENT": variant.resident, "SHARED": shared}, shared)


def prefill_blocks(tokens: int, sequences: int, group: int) -> int:
    """Return thread blocks of prefill that are enough however `tokens` rows are shared out among `sequences`."""
    return tokens * group // PREFILL_ROWS + min(sequences, tokens)


@cache
def prefill(kv_format: int, head: int) -> Specialisation:
    """Return the kernel that attends with the rows of a prefill chunk."""
    # Queries and P with a piece of padding a row, and a float for each row and four of the warps.
    shared = PREFILL_ROWS * (16 * (head // 8 + 1) + 16 * (CHUNK * TILE // 8 + 1) + 4 * _PREFILL_COLUMN_GROUPS)
    constants = {"THREADS": 32 * _PREFILL_WARPS, "FORMAT": kv_format, "D": head, "SHARED": shared}
    return Specialisation(PREFILL, constants, shared)


@cache
def reduction(head: int) -> Specialisation:
    """Return the kernel that puts partitions together."""
    return Specialisation(REDUCE, {"THREADS": head, "D": head, "MOST": MOST_PARTITIONS})


def _built_ahead() -> Iterator[Specialisation]:
    for head in HEADS:
        for kv_format in FORMATS.values():
            yield write(kv_format, head)
            yield from (decode(kv_format, head, tiles, SINGLE) for tiles in range(1, MOST_ROW_TILES + 1))
            yield prefill(kv_format, head)
        yield reduction(head)
    yield from (decode(kv_format, qwen38.HEAD, 1, DUAL) for kv_format in FORMATS.values())


SPECIALISATIONS = tuple(_built_ahead())
