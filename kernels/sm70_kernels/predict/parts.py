"""The whole step in parts. A part with a kernel takes what its model predicts; one without takes the least it can.

That least is the start of a kernel, and its bytes at the card's usable bandwidth or its products at the tensor cores'
measured rate, whichever takes longer. No kernel reaches it. Imports neither torch nor numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sm70_kernels import qwen38
from sm70_kernels.predict.constants import products_a_cycle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Basis = Literal[
    "kernel model",
    "library at a published rate",
    "roofline bound, no kernel predicted",
    "gaps between kernels, at a recalled figure",
]
"""Where a part's time comes from. Only a bound is sure to be too small; the others may err to either side."""

KERNEL: Basis = "kernel model"
LIBRARY: Basis = "library at a published rate"
BOUND: Basis = "roofline bound, no kernel predicted"
GAP: Basis = "gaps between kernels, at a recalled figure"

HALF = 2
"""Bytes of an FP16 number."""


@dataclass(frozen=True)
class Row:
    """One kernel of a step. `us` is one launch's; without `machine_code` it comes from a library's published rate."""

    part: str
    family: str
    launches: int
    us: float
    roofline_us: float
    machine_code: bool

    @property
    def ms(self) -> float:
        """Of all its launches."""
        return self.launches * self.us / 1e3


@dataclass(frozen=True)
class Machine:
    """The model's constants that bounds need: GB/s, multiplications a microsecond, and microseconds a kernel."""

    dram_bandwidth: float
    products_a_us: float
    start: float
    gap: float

    @classmethod
    def of(cls, figures: Mapping[str, Mapping[str, Any]]) -> Machine:
        """Take them from the model's table. Raises KeyError where one is missing."""
        value = {name: float(row["value"]) for name, row in figures.items()}
        a_cycle = products_a_cycle(value["sms"], value["sub_cores"], value["hmma_step"])
        return cls(value["dram_bandwidth"], a_cycle * value["clock"] * 1e3, value["ramp"], value["gap"])


@dataclass(frozen=True)
class Kernels:
    """What the kernels and the library take in one step, and the machine that this was predicted for."""

    rows: tuple[Row, ...]
    machine: Machine


@dataclass(frozen=True)
class Draft:
    """A draft of `layers` layers: bytes of its weights that a round reads, and of a token's KV in one layer, on a rank.

    It looks at a window of at most `window` tokens of each request.
    """

    layers: int
    window: int
    token_bytes: int
    weight_bytes: float


@dataclass(frozen=True)
class Workload:
    """How the model is served, as far as the bounds depend on it.

    `token_bytes` are those of a token's KV in one layer on a rank, `state_bytes` those of a request's recurrent state
    in one GDN layer on a rank, convolution included. `weight_bytes` are those of one weight of the dense layers where
    they have no kernel yet, None where they have. `peer_bandwidth` is in GB/s, `collective_latency` in µs.
    """

    ranks: int
    token_bytes: int
    state_bytes: int
    weight_bytes: float | None
    draft: Draft | None
    peer_bandwidth: float
    collective_latency: float


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


def of_kernels(kernels: Kernels, shape: Shape) -> Iterator[Part]:
    """What the kernels' model tells: `dense`, `norm`, `head`, `gdn_ba`, with `_library` where the library does it.

    `recurrence` is the delta net's where each request has one row; a verification's and a prompt's rows have other
    kernels. Attention is left to `bounds`: the model's step knows no contexts.
    """
    decodes = shape.rows == shape.sequences
    sums: dict[tuple[str, bool], tuple[int, float]] = {}
    for row in kernels.rows:
        if row.family == "attention" or (row.family == "gdn" and not decodes):
            continue
        if row.part == "lm_head" and not shape.logits:
            continue
        own = {"lm_head": "head", "gdn_decode": "recurrence"}.get(row.part, row.part)
        own = own if row.family in ("head", "gdn") else row.family
        launches, ms = sums.get((own, row.machine_code), (0, 0.0))
        sums[own, row.machine_code] = launches + row.launches, ms + row.ms
    for (name, machine_code), (launches, ms) in sums.items():
        suffix = "_library" if name == "dense" and not machine_code else ""
        yield Part(name + suffix, KERNEL if machine_code else LIBRARY, launches, ms)


def decode_step(workload: Workload, shape: Shape, kernels: Kernels) -> tuple[Part, ...]:
    """Return all parts of a decode step, or of a round in which a draft's tokens are checked."""
    parts = _parts(workload, shape, kernels)
    if workload.draft is not None:
        (head,) = (part for part in parts if part.name == "head")
        parts += draft(workload.draft, shape, kernels.machine, head)
    return *parts, gaps(parts, kernels.machine)


def prefill_chunk(workload: Workload, shape: Shape, kernels: Kernels) -> tuple[Part, ...]:
    """Return all parts of one chunk of a prompt."""
    parts = _parts(workload, shape, kernels)
    return *parts, gaps(parts, kernels.machine)


def _parts(workload: Workload, shape: Shape, kernels: Kernels) -> list[Part]:
    told = list(of_kernels(kernels, shape))
    names = {part.name for part in told}
    return [*told, *(part for part in bounds(workload, shape, kernels.machine) if part.name not in names)]


def bounds(workload: Workload, shape: Shape, machine: Machine) -> Iterator[Part]:
    """The least that attention, GDN, collectives, and dense layers of weights that no kernel takes, can need."""
    if workload.weight_bytes is not None:
        yield _dense(workload.ranks, workload.weight_bytes, shape, machine)
    yield _attention(workload, shape, machine)
    yield _recurrence(workload, shape, machine)
    if workload.ranks > 1:
        yield _collectives(workload, shape)


def draft(model: Draft, shape: Shape, machine: Machine, head: Part) -> Iterator[Part]:
    """What a round's draft reads: its weights, its window, and the target's output head once more."""
    window = shape.sequences * min(shape.before + 1, model.window) * model.token_bytes
    moved = model.weight_bytes + model.layers * window
    yield Part("draft", BOUND, model.layers, _us(moved / model.layers, 0, machine) * model.layers / 1e3)
    yield Part("draft_head", head.basis, head.launches, head.ms)


def gaps(parts: Sequence[Part], machine: Machine) -> Part:
    """What lies between so many kernels of a graph."""
    return Part("gaps", GAP, 0, sum(part.launches for part in parts) * machine.gap / 1e3)


_DENSE_A_LAYER = 4
"""Launches: gate and up, down, what goes into the mixer, what comes out."""


def _dense(ranks: int, weight_bytes: float, shape: Shape, machine: Machine) -> Part:
    launches = _DENSE_A_LAYER * qwen38.LAYERS
    each = qwen38.dense_weights() / ranks / launches
    us = _us(each * weight_bytes, each * shape.rows, machine)
    return Part("dense", BOUND, launches, launches * us / 1e3)


def _attention(workload: Workload, shape: Shape, machine: Machine) -> Part:
    moved = (shape.sequences * shape.before + shape.rows) * workload.token_bytes
    # A product of each query with its keys, and one of what comes of that with the values.
    products = 2 * shape.attended * qwen38.HEAD * qwen38.QUERY_HEADS / workload.ranks
    layers = qwen38.ATTENTION_LAYERS
    return Part("attention", BOUND, layers, layers * _us(moved, products, machine) / 1e3)


def _recurrence(workload: Workload, shape: Shape, machine: Machine) -> Part:
    # Queries, keys and values in, as much as values out; the state comes and goes.
    a_row = qwen38.GDN_HEAD * (2 * qwen38.GDN_KEY_HEADS + 2 * qwen38.GDN_HEADS)
    moved = 2 * shape.sequences * workload.state_bytes + HALF * shape.rows * a_row / workload.ranks
    layers = qwen38.GDN_LAYERS
    return Part("recurrence", BOUND, layers, layers * _us(moved, 0, machine) / 1e3)


def _collectives(workload: Workload, shape: Shape) -> Part:
    """Two sums over the ranks a layer, and the gathering of logits."""
    ranks, latency = workload.ranks, workload.collective_latency
    rate = workload.peer_bandwidth * (ranks - 1) * 1e3  # bytes a microsecond, to all peers at once
    calls = 2 * qwen38.LAYERS
    # Of a sum each rank sends 2 (ranks - 1) / ranks of the rows.
    us = calls * (latency + HALF * shape.rows * qwen38.HIDDEN * 2 * (ranks - 1) / ranks / rate)
    if shape.logits:
        calls += 1
        us += latency + HALF * shape.logits * qwen38.VOCABULARY * (ranks - 1) / ranks / rate
    return Part("collectives", BOUND, calls, us / 1e3)


def _us(moved: float, products: float, machine: Machine) -> float:
    return machine.start + max(moved / (machine.dram_bandwidth * 1e3), products / machine.products_a_us)
