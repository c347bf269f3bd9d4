"""How each kernel family is launched for a shape: grid, parameters, and which buffers come from DRAM. Pure data.

In a decode step weights pass through L2 once and are gone before the next step, so they are cold; activations were
written by the kernel before and are in L2, unless there are more of them than it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels.heuristics.dense import BLOCK, TILE
from sm70_kernels.model.constants import constants
from sm70_kernels.model.prediction import Buffer, Launch
from sm70_kernels.shapes import EPS

if TYPE_CHECKING:
    from sm70_kernels.heuristics.dense import Layer, Plan
    from sm70_kernels.registry import Specialisation

_MOST_SAMPLES = 4
"""Blocks along a cut of K that are emulated: their parts differ by a block of K at most."""


def _rows(size: int) -> Buffer:
    """Activations of `size` bytes: in L2 where they fit."""
    return Buffer(size, cold=size > constants().l2_bytes)


def dense(plan: Plan, layer: Layer, rows: int, n: int, k: int) -> Launch:
    """A dense layer with FP8 weights of `n` output columns (of each half, when gated) and `k` inputs."""
    split = plan.grid[2]
    weights = Buffer(layer.tiles * TILE * layer.blocks * BLOCK, cold=True)
    scales = Buffer(layer.tiles * (2 * layer.blocks + TILE) * 4, cold=True)
    out, x = _rows(2 * rows * n), _rows(2 * rows * k)
    partials, counters = Buffer(4 * plan.partials), Buffer(4 * plan.grid[0] * plan.grid[1])
    args = (out, x, weights, scales, partials, counters, rows, n, k, layer.tiles, layer.blocks, k)
    sample = tuple((0, 0, part) for part in range(min(split, _MOST_SAMPLES)))
    shape = f"M={rows} N={n * (2 if layer.gated else 1)} K={k}"
    closing = split - 1 if split > 1 else None
    products = rows * layer.tiles * TILE * layer.blocks * BLOCK
    return Launch(plan.grid, args, shape, sample, closing, split, products)


def rms_norm(spec: Specialisation, tokens: int, hidden: int) -> Launch:
    """A row norm, with the residual that `spec` was built for (0 none, 1 FP16, 2 FP32)."""
    residual = spec.constants["RESIDUAL"]
    rows = _rows(2 * tokens * hidden)
    carried = _rows((0, 2, 4)[residual] * tokens * hidden)
    total = _rows(4 * tokens * hidden if residual else 0)
    args = (rows, total, rows, carried, Buffer(2 * hidden, cold=True), tokens, hidden, hidden, hidden, EPS)
    return Launch(tokens, args, f"tokens={tokens} hidden={hidden}")


def gated_rms_norm(spec: Specialisation, tokens: int, heads: int) -> Launch:
    """The norm of the GDN output, gated."""
    head = spec.constants["LANES"] * 8
    rows = _rows(2 * tokens * heads * head)
    blocks = -(-tokens * heads // (spec.threads // spec.constants["LANES"]))
    strides = (heads * head, head, heads * head, head)
    args = (rows, rows, rows, Buffer(2 * head, cold=True), tokens, heads, *strides, EPS)
    return Launch(blocks, args, f"tokens={tokens} heads={heads} head={head}")


def qk_norm_mrope(spec: Specialisation, tokens: int, q_heads: int, k_heads: int, head: int) -> Launch:
    """The norm and rotary embedding of queries and keys, straight from the projection."""
    rotary = spec.constants["ROTARY"]
    # The query projection brings its output gate along, interleaved by head.
    row = (2 * q_heads + 2 * k_heads) * head
    q, k = _rows(2 * tokens * q_heads * head), _rows(2 * tokens * k_heads * head)
    weight, cache = Buffer(2 * head, cold=True), Buffer(2 * tokens * rotary, cold=True)
    blocks = -(-tokens * (q_heads + k_heads) // (spec.threads // spec.constants["LANES"]))
    counts = (tokens, q_heads, k_heads, 262144, 11, 10)
    args = (q, k, q, k, weight, weight, cache, Buffer(24 * tokens), *counts, row, 2 * head, row, head, tokens, EPS)
    return Launch(blocks, args, f"tokens={tokens} heads={q_heads}+{k_heads} head={head}")


def gate(spec: Specialisation, tokens: int, heads: int, width: int) -> Launch:
    """f(gate) * x over [tokens, heads, width]."""
    rows = _rows(2 * tokens * heads * width)
    blocks = -(-heads * width // (spec.threads * spec.constants["WIDTH"]))
    strides = (heads * width, width, 2 * heads * width, 2 * width)
    return Launch(
        (tokens, blocks, 1), (rows, rows, rows, heads, width, *strides), f"tokens={tokens} row={heads}x{width}"
    )


def silu_and_mul(spec: Specialisation, tokens: int, width: int) -> Launch:
    """silu(first half) * second half over [tokens, 2 * width]."""
    rows = _rows(2 * tokens * width)
    blocks = -(-width // (spec.threads * spec.constants["WIDTH"]))
    strides = (2 * width, width, 2 * width, width)
    return Launch((tokens, blocks, 1), (rows, rows, rows, 1, width, *strides), f"tokens={tokens} width={width}")


def expand(spec: Specialisation, layer: Layer, tiles: int) -> Launch:
    """The FP8 weights of so many tiles (of each half, when gated) to FP16, for the library's product."""
    halves, bytes_ = spec.constants["HALVES"], tiles * spec.constants["HALVES"] * TILE * layer.blocks * BLOCK
    scales = Buffer(layer.tiles * (2 * layer.blocks + TILE) * 4, cold=True)
    grid = (-(-layer.blocks // (spec.threads // 32)), tiles * halves, 1)
    args = (_rows(2 * bytes_), Buffer(bytes_, cold=True), scales, layer.blocks, 0, bytes_ // halves, 1.0)
    return Launch(grid, args, f"N={tiles * halves * TILE} K={layer.blocks * BLOCK}")
