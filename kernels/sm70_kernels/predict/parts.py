"""The parts of a step. What has a kernel is told by its model; what has none yet gets the least time that it can take.

That least is the start of a kernel, and its bytes at the card's usable bandwidth or its products at the tensor cores'
measured rate, whichever takes longer. No kernel reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from appliance.bench import predict_data
from appliance.profiles.kv import state_bytes, token_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from appliance.bench.predict_kernels import Kernels, Machine
    from appliance.bench.predict_subject import Subject

Basis = Literal[
    "kernel model",
    "library at a published rate",
    "roofline bound, no kernel yet",
    "gaps between kernels, at a recalled figure",
]
"""Where a part's time comes from. Only a bound is sure to be too small; the others may err to either side."""

KERNEL: Basis = "kernel model"
LIBRARY: Basis = "library at a published rate"
BOUND: Basis = "roofline bound, no kernel yet"
GAP: Basis = "gaps between kernels, at a recalled figure"

HALF = 2
"""Bytes of an FP16 number."""
GIB = 2**30


@dataclass(frozen=True)
class Part:
    """One part of a step or a prompt: predicted milliseconds on a rank, in so many launches at least."""

    name: str
    basis: Basis
    launches: int
    ms: float


@dataclass(frozen=True)
class Shape:
    """What a step works on: `rows` tokens of `sequences` requests, before each of which `before` are in the cache.

    `attended` is how many pairs of a query and a key there are, `logits` how many rows are sampled from.
    """

    rows: int
    sequences: int
    before: int
    attended: int
    logits: int


def decode_shape(context: int, concurrency: int, drafted: int) -> Shape:
    """A step that gives each of `concurrency` requests its token number `context`, and checks a draft's."""
    rows = concurrency * (1 + drafted)
    return Shape(rows, concurrency, context - 1, rows * context, rows)


def chunk_shape(before: int, tokens: int, *, last: bool) -> Shape:
    """A chunk of `tokens` of one prompt, after `before` others. Only the last token's logits are wanted."""
    return Shape(tokens, 1, before, tokens * before + tokens * (tokens + 1) // 2, int(last))


def of_kernels(kernels: Kernels, logits: int) -> Iterator[Part]:
    """What the kernels' model tells: `dense`, `norm`, `head`, `gdn_ba`, with `_library` where the library does it."""
    sums: dict[tuple[str, bool], tuple[int, float]] = {}
    for row in kernels.rows:
        if row.part == "lm_head" and not logits:
            continue
        own = {"lm_head": "head"}.get(row.part, row.part) if row.family == "head" else row.family
        launches, ms = sums.get((own, row.machine_code), (0, 0.0))
        sums[own, row.machine_code] = launches + row.launches, ms + row.ms
    for (name, machine_code), (launches, ms) in sums.items():
        suffix = "_library" if name == "dense" and not machine_code else ""
        yield Part(name + suffix, KERNEL if machine_code else LIBRARY, launches, ms)


def bounds(subject: Subject, shape: Shape, machine: Machine) -> Iterator[Part]:
    """What has no kernel yet: attention, GDN, collectives, NVFP4 dense layers."""
    if subject.kind == "nvfp4":
        yield _dense(subject, shape, machine)
    yield _attention(subject, shape, machine)
    yield _recurrence(subject, shape, machine)
    if subject.ranks > 1:
        yield _collectives(subject, shape)


def draft(subject: Subject, shape: Shape, machine: Machine, head: Part) -> Iterator[Part]:
    """What a round's draft reads: its weights, its window, and the target's output head once more."""
    geometry, weights = subject.draft, subject.draft_weights
    if geometry is None or weights is None:
        return
    each = token_bytes(geometry.kv_heads, geometry.head_dim, geometry.kv_bytes, subject.ranks)
    window = shape.sequences * min(shape.before + 1, geometry.window) * each
    moved = weights.value * GIB - predict_data.load().draft_gathered.value + geometry.layers * window
    yield Part("draft", BOUND, geometry.layers, _us(moved / geometry.layers, 0, machine) * geometry.layers / 1e3)
    yield Part("draft_head", head.basis, head.launches, head.ms)


def gaps(parts: Sequence[Part], machine: Machine) -> Part:
    """What lies between so many kernels of a graph."""
    return Part("gaps", GAP, 0, sum(part.launches for part in parts) * machine.gap / 1e3)


def weights_of(subject: Subject) -> int:
    """Weights of all dense layers, whole model, b and a of the GDN layers included, head and embedding not."""
    model, geometry = subject.model, subject.geometry
    heads = geometry.linear_value_heads
    mlp = subject.layers * 3 * model.intermediate
    # Queries come with their gates; what goes out has queries' width.
    attention = geometry.layers_full_attention * geometry.head_dim * (3 * model.query_heads + 2 * geometry.kv_heads)
    # Queries and keys, values and z, then what goes out, then b and a.
    widths = geometry.linear_head_dim * (2 * geometry.linear_key_heads + 3 * heads) + 2 * heads
    return model.hidden * (mlp + attention + geometry.layers_linear_attention * widths)


_DENSE_A_LAYER = 4
"""Launches: gate and up, down, what goes into the mixer, what comes out."""


def _dense(subject: Subject, shape: Shape, machine: Machine) -> Part:
    launches = _DENSE_A_LAYER * subject.layers
    each = weights_of(subject) / subject.ranks / launches
    us = _us(each * predict_data.load().nvfp4_weight.value, each * shape.rows, machine)
    return Part("dense", BOUND, launches, launches * us / 1e3)


def _attention(subject: Subject, shape: Shape, machine: Machine) -> Part:
    geometry = subject.geometry
    tokens = shape.sequences * shape.before + shape.rows
    moved = tokens * token_bytes(geometry.kv_heads, geometry.head_dim, subject.kv_bytes, subject.ranks)
    # A product of each query with its keys, and one of what comes of that with the values.
    products = 2 * shape.attended * geometry.head_dim * subject.model.query_heads / subject.ranks
    layers = geometry.layers_full_attention
    return Part("attention", BOUND, layers, layers * _us(moved, products, machine) / 1e3)


def _recurrence(subject: Subject, shape: Shape, machine: Machine) -> Part:
    geometry = subject.geometry
    state = state_bytes(
        geometry, tensor_parallel_size=subject.ranks, num_speculative_tokens=0, ssm_bytes=geometry.ssm_state_bytes
    )
    # Queries, keys and values in, as much as values out; the state comes and goes.
    a_row = geometry.linear_head_dim * (2 * geometry.linear_key_heads + 2 * geometry.linear_value_heads)
    moved = 2 * shape.sequences * state + HALF * shape.rows * a_row / subject.ranks
    layers = geometry.layers_linear_attention
    return Part("recurrence", BOUND, layers, layers * _us(moved, 0, machine) / 1e3)


def _collectives(subject: Subject, shape: Shape) -> Part:
    """Two sums over the ranks a layer, and the gathering of logits."""
    data, ranks = predict_data.load(), subject.ranks
    rate = data.peer_bandwidth.value * (ranks - 1) * 1e3  # bytes a microsecond, to all peers at once
    latency, calls = data.collective_latency.value, 2 * subject.layers
    # Of a sum each rank sends 2 (ranks - 1) / ranks of the rows.
    us = calls * (latency + HALF * shape.rows * subject.model.hidden * 2 * (ranks - 1) / ranks / rate)
    if shape.logits:
        calls += 1
        us += latency + HALF * shape.logits * subject.model.vocabulary * (ranks - 1) / ranks / rate
    return Part("collectives", BOUND, calls, us / 1e3)


def _us(moved: float, products: float, machine: Machine) -> float:
    return machine.start + max(moved / (machine.dram_bandwidth * 1e3), products / machine.products_a_us)
