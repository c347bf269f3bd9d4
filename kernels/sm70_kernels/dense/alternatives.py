"""Which other tactics could serve a dense layer, for the tuner to try: a card may want another cut than the table's.

Up to 64 rows a row's bits hang on the number of K parts alone (`parts`), so a layer may change it for all its buckets
of rows at once and for no single one. Pure tables, no torch.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from sm70_kernels.dense import table
from sm70_kernels.dense.table import BLOCK, COUNTERS, INVARIANT_ROWS, ROWS, Layer, Tactic
from sm70_kernels.hardware import SHARED_PER_SM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.registry import Specialisation

STEPS = BLOCK // 16
MOST_WARPS = 16
MOST_WARPS_ALONG_K = 8
"""A power of two below the 15 named barriers that csrc/dense/w8a16.cu has for them."""


def parts(tactic: Tactic) -> int:
    """Return into how many parts K is cut, which alone decides a row's bits."""
    return tactic.wk * tactic.split


def fits(layer: Layer, rows: int, tactic: Tactic) -> bool:
    """Say whether the kernel can be built for a tactic and serve so many rows of a layer with it."""
    if min(tactic) < 1 or tactic.chunk < ROWS:
        return False
    warps, turn = tactic.wn * tactic.wk, max(2 * tactic.depth, tactic.chunk // ROWS)
    blocks = -(-rows // (ROWS * tactic.mt)) * -(-layer.tiles // (tactic.nt * tactic.wn))
    # Sums of one row tile, in bytes, which an SM's thread blocks must all have room for.
    sums = warps * tactic.nt * 1024
    return (
        ROWS * tactic.mt == table.bucket_of(rows)
        and warps <= MOST_WARPS
        and tactic.wk <= MOST_WARPS_ALONG_K
        and parts(tactic) & (parts(tactic) - 1) == 0
        and STEPS % turn == turn % (2 * tactic.depth) == turn % (tactic.chunk // ROWS) == 0
        and (not layer.gated or tactic.nt % 2 == 0)
        and (tactic.split == 1 or (blocks <= COUNTERS and parts(tactic) <= layer.blocks))
        and sums <= min(table.SUMS_AT_ONCE, SHARED_PER_SM // tactic.resident)
        and table.specialisation(tactic, layer.gated).shared_bytes * tactic.resident <= SHARED_PER_SM
    )


@cache
def built(layer: Layer, rows: int) -> tuple[Tactic, ...]:
    """Return every tactic that is built ahead and fits, the table's own candidates first. `rows` is at most 64."""
    assert rows <= INVARIANT_ROWS
    own = table.candidates(layer, rows)
    every = (Tactic(*(spec.constants[name.upper()] for name in Tactic._fields)) for spec in _of(layer.gated))
    return (*own, *(each for each in dict.fromkeys(every) if each not in own and fits(layer, rows, each)))


@cache
def around(layer: Layer, rows: int) -> tuple[Tactic, ...]:
    """Return `built` and what lies one step around the table's first choice, which must be compiled first."""
    near = (each for each in _near(table.candidates(layer, rows)[0]) if fits(layer, rows, each))
    return tuple(dict.fromkeys((*built(layer, rows), *near)))


def _near(tactic: Tactic) -> Iterator[Tactic]:
    """Half and twice of each constant but the rows, and warps exchanged between N and K."""
    for name in ("nt", "wn", "wk", "split", "depth", "chunk", "resident"):
        value: int = getattr(tactic, name)
        for other in (value // 2, 2 * value):
            yield tactic._replace(**{name: other})
    yield tactic._replace(wn=2 * tactic.wn, wk=tactic.wk // 2)
    yield tactic._replace(wn=tactic.wn // 2, wk=2 * tactic.wk)
    # The same parts with more thread blocks, and with fewer.
    yield tactic._replace(wk=tactic.wk // 2, split=2 * tactic.split)
    yield tactic._replace(wk=2 * tactic.wk, split=tactic.split // 2)


def _of(gated: bool) -> Iterator[Specialisation]:
    for spec in table.SPECIALISATIONS:
        if spec.kernel is table.DENSE and spec.constants["SILU"] == int(gated):
            yield spec
