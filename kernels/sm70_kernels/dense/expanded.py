"""A dense layer of many rows, as operators/dense.py does it: weights expanded to FP16 by our kernel, then cuBLAS."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm70_kernels.heuristics import dense, elementwise
from sm70_kernels.heuristics.dense import BLOCK, TILE
from sm70_kernels.model import launches
from sm70_kernels.model.library import HALF, Product

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.model.prediction import Launch
    from sm70_kernels.registry import Specialisation

WORKSPACE_BYTES = 8704 * 5120 * 2
"""Of weights that are expanded at a time; `operators.dense` has the same, and imports torch."""


@dataclass(frozen=True, slots=True)
class Run:
    """A kernel of ours on the way: what it does (`expand`, `silu`), how often, and what runs."""

    what: str
    count: int
    spec: Specialisation
    launch: Launch


@dataclass(frozen=True, slots=True)
class Call:
    """A product by the library, and how often."""

    what: str
    count: int
    product: Product


def parts(n: int, k: int, gated: bool, rows: int) -> Iterator[Run | Call]:
    """Yield what a layer of `n` output columns (of each half, when gated) and `k` inputs takes for so many rows."""
    layer = dense.layer_of(n, k, gated)
    halves, width = 2 if gated else 1, layer.blocks * BLOCK
    tiles = layer.tiles // halves
    at_once = min(WORKSPACE_BYTES // (HALF * halves * TILE * width), tiles)
    expansion = dense.expansion(gated)
    # Tiles of a turn and their columns; those of the last tile beyond n are expanded and not multiplied.
    turns = [(min(at_once, tiles - first), first) for first in range(0, tiles, at_once)]
    sizes = Counter((count, min(count * TILE, n - first * TILE)) for count, first in turns)
    for (count, columns), times in sizes.items():
        yield Run("expand", times, expansion, launches.expand(expansion, layer, count))
        yield Call("product", times * halves, Product(rows, columns, k))
    if gated:
        spec = elementwise.gate(wide=n % 8 == 0, silu=True)
        yield Run("silu", 1, spec, launches.silu_and_mul(spec, rows, n))
