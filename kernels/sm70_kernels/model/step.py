"""The launches of one decode step of Qwen3.8-27B on a rank, and what they take together. Predicted, all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm70_kernels import shapes
from sm70_kernels.heuristics import dense, elementwise
from sm70_kernels.model import launches
from sm70_kernels.model.constants import Corner, constants
from sm70_kernels.model.prediction import Launch, Prediction, predict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sm70_kernels.registry import Specialisation

GDN_LAYERS, ATTENTION_LAYERS = 48, 16
LAYERS = GDN_LAYERS + ATTENTION_LAYERS
ATTENTION_COLUMNS = (2 * shapes.QUERY_HEADS + 2 * shapes.KEY_HEADS) * shapes.HEAD
"""Queries with their output gates, keys and values."""
GDN_COLUMNS = 16384
"""Queries, keys, values and z of a GDN layer (checkpoints.md, TP1)."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A launch of a step: the layer's `part`, its family (`dense`, `norm`), its count in a step, and what runs."""

    part: str
    family: str
    count: int
    spec: Specialisation
    launch: Launch

    def predict(self, corner: Corner = "expected") -> Prediction:
        """Return what the model says of it. Raises KernelError."""
        return predict(self.spec, self.launch, corner)


def projections(tokens: int, ranks: int) -> Iterator[Planned]:
    """Yield the dense layers with FP8 weights of a step."""
    hidden, inner = shapes.HIDDEN, shapes.INTERMEDIATE // ranks
    mixed = shapes.GDN_HEADS * shapes.GDN_HEAD // ranks
    rows = (
        ("gate_up", LAYERS, inner, hidden, True),
        ("down", LAYERS, hidden, inner, False),
        ("qkv", ATTENTION_LAYERS, ATTENTION_COLUMNS // ranks, hidden, False),
        ("o", ATTENTION_LAYERS, hidden, shapes.QUERY_HEADS * shapes.HEAD // ranks, False),
        ("qkvz", GDN_LAYERS, GDN_COLUMNS // ranks, hidden, False),
        ("out", GDN_LAYERS, hidden, mixed, False),
    )
    for part, count, n, k, gated in rows:
        layer = dense.layer_of(n, k, gated)
        plan = dense.plan(layer, tokens)
        yield Planned(part, "dense", count, plan.spec, launches.dense(plan, layer, tokens, n, k))


def norms(tokens: int, ranks: int) -> Iterator[Planned]:
    """Yield the norms and gates of a step."""
    hidden = shapes.HIDDEN
    wide = elementwise.rms_norm(hidden, wide=True, residual=2)
    gated = elementwise.gated_rms_norm(shapes.GDN_HEAD)
    rotary = elementwise.qk_norm_mrope(shapes.HEAD, shapes.ROTARY)
    assert wide is not None
    assert gated is not None
    assert rotary is not None
    # Before and after each layer's mixer, and once at the end.
    yield Planned("add_rms_norm", "norm", 2 * LAYERS + 1, wide, launches.rms_norm(wide, tokens, hidden))
    heads = shapes.GDN_HEADS // ranks
    yield Planned("gated_rms_norm", "norm", GDN_LAYERS, gated, launches.gated_rms_norm(gated, tokens, heads))
    queries, keys = shapes.QUERY_HEADS // ranks, max(1, shapes.KEY_HEADS // ranks)
    launch = launches.qk_norm_mrope(rotary, tokens, queries, keys)
    yield Planned("qk_norm_mrope", "norm", ATTENTION_LAYERS, rotary, launch)
    sigmoid = elementwise.gate(wide=True, silu=False)
    launch = launches.gate(sigmoid, tokens, queries, shapes.HEAD)
    yield Planned("sigmoid_gate", "norm", ATTENTION_LAYERS, sigmoid, launch)


@dataclass(frozen=True, slots=True)
class Sum:
    """What the launches of a step take together, in predicted ms: the kernels alone, and with the gaps between them."""

    family: str
    tokens: int
    ranks: int
    kernels_ms: float
    gaps_ms: float
    roofline_ms: float
    launches: int
    target_ms: float | None = None
    published_ms: float | None = None
    provenance: str = "predicted"


TARGETS = {("dense", 1, 4): 8.4, ("dense", 8, 4): 8.4, ("dense", 32, 4): 10.5}
"""Issue 3: what a step's FP8 dense launches may take, in ms, by family, rows and ranks."""

PUBLISHED = {("dense", 1, 4): 8.95, ("dense", 32, 4): 14.924}
"""1Cat 1.3.0 on 4 V100-SXM2 (volta.md C.0 and issue 3): FP8 GEMM of a 128K-context token, and of a step of 32 rows."""


def total(
    family: str, tokens: int, ranks: int, rows: Iterable[tuple[Planned, Prediction]], corner: Corner = "expected"
) -> Sum:
    """Sum the rows of one family."""
    chosen = [(planned, found) for planned, found in rows if planned.family == family]
    count = sum(planned.count for planned, _ in chosen)
    return Sum(
        family,
        tokens,
        ranks,
        sum(planned.count * found.us for planned, found in chosen) / 1e3,
        count * constants(corner).gap / 1e3,
        sum(planned.count * found.roofline_us for planned, found in chosen) / 1e3,
        count,
        TARGETS.get((family, tokens, ranks)),
        PUBLISHED.get((family, tokens, ranks)),
    )


def launches_of(tokens: int, ranks: int) -> list[Planned]:
    """Return every launch of a decode step that our kernels serve."""
    return [*projections(tokens, ranks), *norms(tokens, ranks)]
