"""The launches of one step of Qwen3.8-27B on a rank, and what they take together. Predicted, all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from sm70_kernels import shapes
from sm70_kernels.heuristics import dense, elementwise
from sm70_kernels.model import expanded, launches, library
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
"""Queries, keys, values and z of a GDN layer (docs/checkpoints.md, "Shapes of each rank")."""


VOCABULARY = 248320

Head = Literal["fp16", "fp8"]
"""The output head's weights. FP16: Qwen/Qwen3.8-27B-FP8 and the others whose list of exceptions has it, by the library;
FP8 with a scale a column: the mixed NVFP4 checkpoint, by our kernel (docs/checkpoints.md, "Target checkpoints")."""

Path = Literal["native", "expanded"]
"""How a dense layer is done: by one kernel, or by expanding its weights for the library."""

CONTAINS = (
    "dense layers with FP8 weights",
    "norms, rotary embedding and gates",
    "output head and b/a projection of the GDN layers, both FP16 by the library",
)
LACKS = (
    "attention",
    "GDN recurrence and convolution",
    "collectives",
    "embedding, gathering of logits and sampling",
    "what the engine does between steps",
)
"""What a step's sums are made of, and what runs in a step besides and has no prediction here."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A launch of a step: the layer's `part`, its family (`dense`, `norm`, `head`), its count in a step, what runs."""

    part: str
    family: str
    count: int
    spec: Specialisation
    launch: Launch

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.spec.name

    def predict(self, corner: Corner = "expected") -> Prediction:
        """Return what the model says of it. Raises KernelError."""
        return predict(self.spec, self.launch, corner)


@dataclass(frozen=True, slots=True)
class Called:
    """A product of a step that the library does, as Planned."""

    part: str
    family: str
    count: int
    product: library.Product

    @property
    def name(self) -> str:
        """The library's."""
        return library.NAME

    def predict(self, corner: Corner = "expected") -> library.Estimate:
        """Return what its roofline says."""
        return library.estimate(self.product, corner)


Work: TypeAlias = "Planned | Called"
Found: TypeAlias = "Prediction | library.Estimate"


def projections(tokens: int, ranks: int, path: Path | None = None) -> Iterator[Work]:
    """Yield what the dense layers with FP8 weights of a step take, by `path` or as the table says."""
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
    chosen = path or ("expanded" if tokens >= dense.EXPAND_FROM else "native")
    for part, count, n, k, gated in rows:
        if chosen == "native":
            yield _native(part, "dense", count, tokens, n, k, gated)
            continue
        for each in expanded.parts(n, k, gated, tokens):
            name, times = f"{part} {each.what}", count * each.count
            if isinstance(each, expanded.Call):
                yield Called(name, "dense", times, each.product)
            else:
                yield Planned(name, "dense", times, each.spec, each.launch)


def _native(part: str, family: str, count: int, tokens: int, n: int, k: int, gated: bool = False) -> Planned:
    layer = dense.layer_of(n, k, gated)
    plan = dense.plan(layer, tokens)
    return Planned(part, family, count, plan.spec, launches.dense(plan, layer, tokens, n, k))


def heads(tokens: int, logits: int, ranks: int, head: Head = "fp16") -> Iterator[Work]:
    """Yield the output head over the `logits` rows that are sampled from, and b and a of the GDN layers."""
    columns = VOCABULARY // ranks
    if head == "fp8":
        yield _native("lm_head", "head", 1, logits, columns, shapes.HIDDEN)
    else:
        yield Called("lm_head", "head", 1, library.Product(logits, columns, shapes.HIDDEN))
    small = library.Product(tokens, 2 * shapes.GDN_HEADS // ranks, shapes.HIDDEN)
    yield Called("gdn_ba", "head", GDN_LAYERS, small)


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
    launch = launches.qk_norm_mrope(rotary, tokens, queries, keys, shapes.HEAD)
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
"""What a step's FP8 dense launches may take, in ms, by family, rows and ranks (docs/published-figures.md, "Goals of
this project")."""

PUBLISHED = {("dense", 1, 4): 8.95, ("dense", 32, 4): 14.924}
"""1Cat on 4 V100-SXM2: FP8 GEMM of a 128K-context token, and of a step of 32 rows (docs/published-figures.md, "Where a
token's time goes")."""


def total(family: str, tokens: int, ranks: int, rows: Iterable[tuple[Work, Found]], corner: Corner = "expected") -> Sum:
    """Sum the rows of one family, or of `all`."""
    chosen = [(planned, found) for planned, found in rows if family in (planned.family, "all")]
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


def launches_of(
    tokens: int, ranks: int, logits: int | None = None, head: Head = "fp16", path: Path | None = None
) -> list[Work]:
    """Return every launch of a step that our kernels and the library's products serve.

    `logits` rows are sampled from: all, where nothing is said, as in a decode step; one for each prompt that ends in a
    step that prefills.
    """
    every = tokens if logits is None else logits
    return [*projections(tokens, ranks, path), *norms(tokens, ranks), *heads(tokens, every, ranks, head)]
