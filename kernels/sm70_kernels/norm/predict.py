"""How the norms are launched in a step: grid, parameters, and which buffers come from DRAM. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels import qwen38
from sm70_kernels.norm import table
from sm70_kernels.predict.launch import Buffer, Launch, activations
from sm70_kernels.predict.work import Planned
from sm70_kernels.qwen38 import EPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.predict.work import Step
    from sm70_kernels.registry import Specialisation


def launches(step: Step) -> Iterator[Planned]:
    """Yield the norms of a step."""
    tokens, hidden = step.tokens, qwen38.HIDDEN
    wide = table.rms_norm(hidden, wide=True, residual=2)
    gated = table.gated_rms_norm(qwen38.GDN_HEAD)
    rotary = table.qk_norm_mrope(qwen38.HEAD, qwen38.ROTARY)
    assert wide is not None
    assert gated is not None
    assert rotary is not None
    # Before and after each layer's mixer, and once at the end.
    yield Planned("add_rms_norm", "norm", 2 * qwen38.LAYERS + 1, wide, rms_norm(wide, tokens, hidden))
    heads = qwen38.GDN_HEADS // step.ranks
    yield Planned("gated_rms_norm", "norm", qwen38.GDN_LAYERS, gated, gated_rms_norm(gated, tokens, heads))
    queries, keys = qwen38.QUERY_HEADS // step.ranks, max(1, qwen38.KEY_HEADS // step.ranks)
    launch = qk_norm_mrope(rotary, tokens, queries, keys, qwen38.HEAD)
    yield Planned("qk_norm_mrope", "norm", qwen38.ATTENTION_LAYERS, rotary, launch)


def rms_norm(spec: Specialisation, tokens: int, hidden: int) -> Launch:
    """A row norm, with the residual that `spec` was built for (0 none, 1 FP16, 2 FP32)."""
    residual = spec.constants["RESIDUAL"]
    rows = activations(2 * tokens * hidden)
    carried = activations((0, 2, 4)[residual] * tokens * hidden)
    total = activations(4 * tokens * hidden if residual else 0)
    args = (rows, total, rows, carried, Buffer(2 * hidden, cold=True), tokens, hidden, hidden, hidden, EPS)
    return Launch(tokens, args, f"tokens={tokens} hidden={hidden}")


def gated_rms_norm(spec: Specialisation, tokens: int, heads: int) -> Launch:
    """The norm of the GDN output, gated."""
    head = spec.constants["LANES"] * 8
    rows = activations(2 * tokens * heads * head)
    blocks = -(-tokens * heads // (spec.threads // spec.constants["LANES"]))
    strides = (heads * head, head, heads * head, head)
    args = (rows, rows, rows, Buffer(2 * head, cold=True), tokens, heads, *strides, EPS)
    return Launch(blocks, args, f"tokens={tokens} heads={heads} head={head}")


def qk_norm_mrope(spec: Specialisation, tokens: int, q_heads: int, k_heads: int, head: int) -> Launch:
    """The norm and rotary embedding of queries and keys, straight from the projection."""
    rotary = spec.constants["ROTARY"]
    # The query projection brings its output gate along, interleaved by head.
    row = (2 * q_heads + 2 * k_heads) * head
    q, k = activations(2 * tokens * q_heads * head), activations(2 * tokens * k_heads * head)
    weight, cache = Buffer(2 * head, cold=True), Buffer(2 * tokens * rotary, cold=True)
    blocks = -(-tokens * (q_heads + k_heads) // (spec.threads // spec.constants["LANES"]))
    counts = (tokens, q_heads, k_heads, qwen38.POSITIONS, *qwen38.MROPE_SECTIONS[1:])
    args = (q, k, q, k, weight, weight, cache, Buffer(24 * tokens), *counts, row, 2 * head, row, head, tokens, EPS)
    return Launch(blocks, args, f"tokens={tokens} heads={q_heads}+{k_heads} head={head}")
