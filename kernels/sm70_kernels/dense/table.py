"""Which specialisation serves a dense layer with FP8 weights, by its shape and the number of rows. Pure tables.

A layer is counted in tiles of 32 columns and blocks of 128 along K, as it is packed. Its form says how many tiles a
thread block owns, and with that into how many parts K is cut; the parts are summed in one order. Up to 64 rows a form
has one number of parts, so a row's result does not depend on how many rows come with it. From 65 rows on the parts
depend on the layer and on the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sm70_kernels import qwen38
from sm70_kernels.hardware import SHARED_PER_SM, SMS
from sm70_kernels.registry import Kernel, Specialisation

if TYPE_CHECKING:
    from collections.abc import Iterator

DENSE = Kernel(
    "dense_w8a16",
    source="dense/w8a16.cu",
    entry="w8a16",
    params="PPPPPPiiiiiq",
    constants=("THREADS", *("MT", "NT", "WN", "WK", "SPLIT", "DEPTH", "CHUNK", "SILU", "RESIDENT", "PASSES", "SHARED")),
)
EXPAND = Kernel(
    "dense_expand", source="dense/expand.cu", entry="expand", params="PPPiiqf", constants=("THREADS", "HALVES")
)

TILE = 32
"""Columns of a tile: four quad-pairs of eight."""
BLOCK = 128
"""K of a block: that of a checkpoint's block scale."""
ROWS = 8
"""Rows of an m8n8k4 tile."""
INVARIANT_ROWS = 64
"""Up to here a row's result is the same bit for bit, whatever the number of rows."""
EXPAND_FROM = 4096
"""Rows from which the weights are expanded to FP16 for cuBLAS. Predicted: 83 to 93 TFLOP/s without, and 0.17 ms for the
expansion of Qwen3.8-27B's gate and up at four ranks; published: 1Cat 1.3.0 crosses at 3920
(docs/volta.md, "Products of few rows")."""
COUNTERS = 64
"""Thread blocks that share tiles with others, at most, in a launch that splits K over thread blocks."""
WORKSPACE_BYTES = qwen38.EXPANDED_BYTES
"""Of weights that are expanded at a time."""

GATED_ROWS = 4096
"""Rows whose gate and up are held as FP32 at a time, where weights expand: as much memory as 8192 rows of FP16."""


class Layer(NamedTuple):
    """What of a layer decides: tiles and blocks as packed, and whether its tiles alternate between gate and up."""

    tiles: int
    blocks: int
    gated: bool


class Tactic(NamedTuple):
    """How a thread block goes about it; the constants of csrc/dense/w8a16.cu.

    `mt` row tiles of 8; `nt` column tiles a warp; `wn` warps along N; `wk` warps and `split` thread blocks along K;
    `depth` 16-byte loads a lane and tile asks for at once, while as many are used; `chunk` of K staged at once;
    `resident` thread blocks that an SM is to hold, which bounds the registers.
    """

    mt: int
    nt: int
    wn: int
    wk: int
    split: int
    depth: int
    chunk: int
    resident: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch: `partials` floats of scratch memory, 0 when no thread blocks share a tile."""

    spec: Specialisation
    grid: tuple[int, int, int]
    partials: int


# A layer's form: the first of these numbers of tiles for a thread block that makes no more thread blocks than SMs. One
# on each SM, all at work from start to end, was predicted faster than more and smaller ones.
_FORMS = {"plain": (1, 2, 4, 8, 16), "gated": (2, 4, 8, 16)}

# Up to 64 rows, by the most rows and the form. The first line of its kind serves, others are for the tuner to try. All
# lines of a form cut K into the same number of parts, wk * split. Provenance of every line: predicted (NOTES.md).
#    rows  tiles     layer          mt nt wn wk split depth chunk resident
_NARROW = (
    (   8,    1,  'plain',  Tactic(1, 1, 1, 8, 1, 4, 64, 1)),
    (   8,    2,  'plain',  Tactic(1, 1, 2, 4, 1, 4, 64, 1)),
    (   8,    2,  'plain',  Tactic(1, 1, 2, 4, 1, 2, 32, 2)),
    (   8,    2,  'gated',  Tactic(1, 2, 1, 8, 1, 4, 64, 1)),
    (   8,    4,   'both',  Tactic(1, 2, 2, 4, 1, 4, 64, 1)),
    (   8,    4,   'both',  Tactic(1, 2, 2, 4, 1, 2, 32, 2)),
    (   8,    8,   'both',  Tactic(1, 2, 4, 2, 1, 4, 64, 1)),
    (   8,   16,   'both',  Tactic(1, 2, 8, 1, 1, 4, 64, 1)),
    (  16,    1,  'plain',  Tactic(2, 1, 1, 8, 1, 4, 32, 1)),
    (  16,    2,  'plain',  Tactic(2, 1, 2, 4, 1, 4, 32, 1)),
    (  16,    2,  'plain',  Tactic(2, 1, 2, 4, 1, 2, 64, 1)),
    (  16,    2,  'gated',  Tactic(2, 2, 1, 8, 1, 4, 32, 1)),
    (  16,    4,   'both',  Tactic(2, 2, 2, 4, 1, 4, 32, 1)),
    (  16,    4,   'both',  Tactic(2, 2, 2, 4, 1, 2, 64, 1)),
    (  16,    8,   'both',  Tactic(2, 2, 4, 2, 1, 4, 32, 1)),
    (  16,   16,   'both',  Tactic(2, 2, 8, 1, 1, 4, 32, 1)),
    (  24,    1,  'plain',  Tactic(3, 1, 1, 8, 1, 2, 64, 1)),
    (  24,    2,  'plain',  Tactic(3, 1, 2, 4, 1, 2, 64, 1)),
    (  24,    2,  'plain',  Tactic(3, 1, 2, 4, 1, 4, 64, 1)),
    (  24,    2,  'gated',  Tactic(3, 2, 1, 8, 1, 2, 64, 1)),
    (  24,    4,   'both',  Tactic(3, 2, 2, 4, 1, 2, 64, 1)),
    (  24,    4,   'both',  Tactic(3, 2, 2, 4, 1, 4, 64, 1)),
    (  24,    8,   'both',  Tactic(3, 2, 4, 2, 1, 2, 64, 1)),
    (  24,   16,   'both',  Tactic(3, 2, 8, 1, 1, 2, 64, 1)),
    (  32,    1,  'plain',  Tactic(4, 1, 1, 8, 1, 2, 64, 1)),
    (  32,    2,  'plain',  Tactic(4, 1, 2, 4, 1, 2, 64, 1)),
    (  32,    2,  'plain',  Tactic(4, 1, 2, 4, 1, 4, 32, 1)),
    (  32,    2,  'gated',  Tactic(4, 2, 1, 8, 1, 2, 64, 1)),
    (  32,    4,   'both',  Tactic(4, 2, 2, 4, 1, 2, 64, 1)),
    (  32,    4,   'both',  Tactic(4, 2, 2, 4, 1, 4, 32, 1)),
    (  32,    8,   'both',  Tactic(4, 2, 4, 2, 1, 2, 64, 1)),
    (  32,   16,   'both',  Tactic(4, 2, 8, 1, 1, 2, 64, 1)),
    (  48,    1,  'plain',  Tactic(6, 1, 1, 8, 1, 2, 32, 1)),
    (  48,    2,  'plain',  Tactic(6, 1, 2, 4, 1, 2, 64, 1)),
    (  48,    2,  'gated',  Tactic(6, 2, 4, 2, 4, 2, 32, 1)),
    (  48,    4,   'both',  Tactic(6, 2, 2, 4, 1, 4, 32, 1)),
    (  48,    8,   'both',  Tactic(6, 2, 4, 2, 1, 2, 32, 1)),
    (  48,   16,   'both',  Tactic(6, 2, 8, 1, 1, 2, 32, 1)),
    (  64,    1,  'plain',  Tactic(8, 2, 4, 2, 4, 2, 32, 1)),
    (  64,    2,  'plain',  Tactic(8, 1, 2, 4, 1, 4, 64, 1)),
    (  64,    2,  'gated',  Tactic(8, 2, 4, 2, 4, 2, 32, 1)),
    (  64,    4,   'both',  Tactic(8, 2, 4, 2, 2, 2, 32, 1)),
    (  64,    8,   'both',  Tactic(8, 2, 4, 2, 1, 2, 32, 1)),
    (  64,   16,   'both',  Tactic(8, 2, 8, 1, 1, 2, 32, 1)),
)  # fmt: skip

# From 65 rows on, where tensor cores bound: with enough thread blocks two on an SM, one of which multiplies while the
# other starts or ends; else one with twice the warps, by its rows, and as much `split` as brings the thread blocks near
# the number of SMs. Provenance: predicted.
_MANY = Tactic(8, 2, 4, 1, 1, 2, 32, 2)
_ENOUGH = 100
_WIDE = ((48, Tactic(6, 2, 4, 2, 1, 2, 32, 1)), (64, Tactic(8, 2, 4, 2, 1, 2, 32, 1)))
_SPLITS = (1, 2, 4)

SUMS_AT_ONCE = 64 * 1024
"""Most bytes that the accumulators of one pass take in shared memory."""


@cache
def layer_of(n: int, k: int, gated: bool) -> Layer:
    """Return the layer of `n` output columns (of each half, when gated) and `k` inputs."""
    return Layer(-(-n // TILE) * (2 if gated else 1), -(-k // BLOCK), gated)


@cache
def specialisation(tactic: Tactic, gated: bool) -> Specialisation:
    """Return the kernel built for a tactic."""
    warps = tactic.wn * tactic.wk
    sums = warps * tactic.nt * 1024  # bytes of a row tile
    room = min(SUMS_AT_ONCE, SHARED_PER_SM // tactic.resident)
    passes = next(n for n in range(1, tactic.mt + 1) if tactic.mt % n == 0 and sums * (tactic.mt // n) <= room)
    staged = tactic.wk * 2 * ROWS * tactic.mt * (tactic.chunk // 8 + 1) * 16
    shared = max(staged, sums * (tactic.mt // passes))
    constants = {
        "THREADS": 32 * warps,
        **{name.upper(): value for name, value in tactic._asdict().items()},
        "SILU": int(gated),
        "PASSES": passes,
        "SHARED": shared,
    }
    return Specialisation(DENSE, constants, shared)


@cache
def expansion(gated: bool) -> Specialisation:
    """Return the kernel that expands weights to FP16, four warps a thread block."""
    return Specialisation(EXPAND, {"THREADS": 128, "HALVES": 2 if gated else 1})


def bucket_of(rows: int) -> int:
    """Return the bucket of a number of rows: the most rows of its tactics up to 64, then the rows of a thread block."""
    if rows <= INVARIANT_ROWS:
        return next(most for most, *_ in _NARROW if rows <= most)
    # The least padding; of equals the larger tile.
    return min((most for most, _ in _WIDE), key=lambda most: (-(-rows // most) * most, -most))


@cache
def candidates(layer: Layer, rows: int) -> tuple[Tactic, ...]:
    """Return the tactics that may serve, the best-thought first. Up to 64 rows all of them give the same bits."""
    bucket = bucket_of(rows)
    if rows <= INVARIANT_ROWS:
        kind = _kind(layer.gated)
        forms = _FORMS[kind]
        form = next((tiles for tiles in forms if -(-layer.tiles // tiles) <= SMS), forms[-1])
        return tuple(tactic for *key, of, tactic in _NARROW if key == [bucket, form] and of in (kind, "both"))
    if _groups(layer, _MANY) * -(-rows // (ROWS * _MANY.mt)) >= _ENOUGH:
        return (_MANY,)
    tactic = next(tactic for most, tactic in _WIDE if most == bucket)
    blocks = _groups(layer, tactic) * -(-rows // bucket)
    splits = [split for split in _SPLITS if split == 1 or (blocks <= COUNTERS and split * tactic.wk <= layer.blocks)]
    return tuple(tactic._replace(split=s) for s in sorted(splits, key=lambda s: (max(0.8 * SMS - blocks * s, 0), s)))


@lru_cache(maxsize=8192)
def plan(layer: Layer, rows: int, tactic: Tactic | None = None) -> Plan:
    """Return the launch for a number of rows, by a tactic or by the one that serves."""
    tactic = tactic or candidates(layer, rows)[0]
    grid = (-(-rows // (ROWS * tactic.mt)), _groups(layer, tactic), tactic.split)
    floats = grid[0] * grid[1] * tactic.split * tactic.wn * tactic.nt * tactic.mt * 256
    return Plan(specialisation(tactic, layer.gated), grid, floats if tactic.split > 1 else 0)


def _kind(gated: bool) -> str:
    return "gated" if gated else "plain"


def _groups(layer: Layer, tactic: Tactic) -> int:
    return -(-layer.tiles // (tactic.nt * tactic.wn))


def _built_ahead() -> Iterator[Specialisation]:
    every = [(tactic, of) for *_, of, tactic in _NARROW]
    every += [(_MANY, "both"), *((tactic._replace(split=s), "both") for _, tactic in _WIDE for s in _SPLITS)]
    # A tactic may serve several forms.
    wanted = ((tactic, gated) for gated in (False, True) for tactic, of in every if of in ("both", _kind(gated)))
    yield from (specialisation(tactic, gated) for tactic, gated in dict.fromkeys(wanted))
    yield from (expansion(gated) for gated in (False, True))


SPECIALISATIONS = tuple(_built_ahead())
