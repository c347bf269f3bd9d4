"""How dense layers are done in a step: launches of our kernels, and the library's products. Imports no torch.

From `EXPAND_FROM` rows on a layer is done as operator.py does it: weights expanded to FP16 by our kernel, then cuBLAS.
Layers whose weights are FP16 in the checkpoint are the library's at any number of rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm70_kernels import qwen38
from sm70_kernels.dense import table
from sm70_kernels.dense.table import BLOCK, TILE
from sm70_kernels.predict.launch import Buffer, Launch, activations
from sm70_kernels.predict.library import HALF, SINGLE, Pass, Product
from sm70_kernels.predict.work import Called, Planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.dense.table import Layer, Plan
    from sm70_kernels.predict.work import Head, Path, Step, Work
    from sm70_kernels.registry import Specialisation

_MOST_SAMPLES = 4
"""Blocks along a cut of K that are emulated: their parts differ by a block of K at most."""


def launches(step: Step) -> Iterator[Work]:
    """Yield all dense layers of a step, the output head among them."""
    yield from projections(step.tokens, step.ranks, step.path)
    yield from heads(step.tokens, step.logits, step.ranks, step.head)


def projections(tokens: int, ranks: int, path: Path | None = None) -> Iterator[Work]:
    """Yield what the dense layers with FP8 weights of a step take, by `path` or as the table says."""
    chosen = path or ("expanded" if tokens >= table.EXPAND_FROM else "native")
    for layer in qwen38.dense_layers(ranks):
        if chosen == "native":
            yield _native(layer, "dense", tokens)
            continue
        for each in expanded(*layer.shape, tokens):
            name, times = f"{layer.part} {each.what}", layer.count * each.count
            if isinstance(each, Call):
                yield Called(name, "dense", times, each.product)
            else:
                yield Planned(name, "dense", times, each.spec, each.launch)


def heads(tokens: int, logits: int, ranks: int, head: Head = "fp16") -> Iterator[Work]:
    """Yield the output head over the `logits` rows that are sampled from, and b and a of the GDN layers."""
    output, small = qwen38.output_head(ranks), qwen38.gdn_gates(ranks)
    if head == "fp8":
        yield _native(output, "head", logits)
    else:
        yield Called(output.part, "head", output.count, Product(logits, output.n, output.k))
    yield Called(small.part, "head", small.count, Product(tokens, small.n, small.k))


def _native(layer: qwen38.DenseLayer, family: str, rows: int) -> Planned:
    packed = table.layer_of(*layer.shape)
    plan = table.plan(packed, rows)
    launch = native(plan, packed, rows, layer.n, layer.k)
    return Planned(layer.part, family, layer.count, plan.spec, launch)


def native(plan: Plan, layer: Layer, rows: int, n: int, k: int) -> Launch:
    """A dense layer with FP8 weights of `n` output columns (of each half, when gated) and `k` inputs."""
    split = plan.grid[2]
    weights = Buffer(layer.tiles * TILE * layer.blocks * BLOCK, cold=True)
    scales = Buffer(layer.tiles * (2 * layer.blocks + TILE) * 4, cold=True)
    out, x = activations(2 * rows * n), activations(2 * rows * k)
    partials, counters = Buffer(4 * plan.partials), Buffer(4 * plan.grid[0] * plan.grid[1])
    args = (out, x, weights, scales, partials, counters, rows, n, k, layer.tiles, layer.blocks, k)
    sample = tuple((0, 0, part) for part in range(min(split, _MOST_SAMPLES)))
    shape = f"M={rows} N={n * (2 if layer.gated else 1)} K={k}"
    closing = split - 1 if split > 1 else None
    products = rows * layer.tiles * TILE * layer.blocks * BLOCK
    return Launch(plan.grid, args, shape, sample, closing, split, products)


def expand(spec: Specialisation, layer: Layer, tiles: int) -> Launch:
    """The FP8 weights of so many tiles (of each half, when gated) to FP16, for the library's product."""
    halves, bytes_ = spec.constants["HALVES"], tiles * spec.constants["HALVES"] * TILE * layer.blocks * BLOCK
    scales = Buffer(layer.tiles * (2 * layer.blocks + TILE) * 4, cold=True)
    grid = (-(-layer.blocks // (spec.threads // 32)), tiles * halves, 1)
    args = (activations(2 * bytes_), Buffer(bytes_, cold=True), scales, layer.blocks, 0, bytes_ // halves, 1.0)
    return Launch(grid, args, f"N={tiles * halves * TILE} K={layer.blocks * BLOCK}")


@dataclass(frozen=True, slots=True)
class Run:
    """The kernel of ours on the way, which expands: how often, and what runs."""

    what: str
    count: int
    spec: Specialisation
    launch: Launch


@dataclass(frozen=True, slots=True)
class Call:
    """A product by the library (`product`) or a pass of torch over its elements (`silu`, `mul`), and how often."""

    what: str
    count: int
    product: Product | Pass


def expanded(n: int, k: int, gated: bool, rows: int) -> Iterator[Run | Call]:
    """Yield what a layer of `n` output columns (of each half, when gated) and `k` inputs takes for so many rows."""
    layer = table.layer_of(n, k, gated)
    halves, width = 2 if gated else 1, layer.blocks * BLOCK
    tiles = layer.tiles // halves
    at_once = min(table.WORKSPACE_BYTES // (HALF * halves * TILE * width), tiles)
    expansion = table.expansion(gated)
    # Tiles of a turn and their columns; those of the last tile beyond n are expanded and not multiplied.
    turns = [(min(at_once, tiles - first), first) for first in range(0, tiles, at_once)]
    sizes = Counter((count, min(count * TILE, n - first * TILE)) for count, first in turns)
    for (count, columns), times in sizes.items():
        yield Run("expand", times, expansion, expand(expansion, layer, count))
        if not gated:
            yield Call("product", times, Product(rows, columns, k))
            continue
        # Gate and up of some rows at a time stay FP32 until they are multiplied.
        for some, often in Counter(_cut(rows, table.GATED_ROWS)).items():
            yield Call("product", 2 * often * times, Product(some, columns, k, SINGLE))
            yield Call("silu", often * times, Pass(some, columns, 2 * SINGLE))
            yield Call("mul", often * times, Pass(some, columns, 2 * SINGLE + HALF))


def _cut(rows: int, most: int) -> Iterator[int]:
    yield from (min(most, rows - first) for first in range(0, rows, most))
