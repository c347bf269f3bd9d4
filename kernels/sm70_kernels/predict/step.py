"""The launches of one step of Qwen3.8-27B on a rank, and what they take together. Predicted, all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm70_kernels import families
from sm70_kernels.predict.constants import Corner, constants
from sm70_kernels.predict.work import MOST_DECODED, Step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm70_kernels.predict.work import Found, Head, Path, Work

CONTAINS = (
    "dense layers with FP8 weights",
    "norms, rotary embedding and gates",
    "output head and b/a projection of the GDN layers, both FP16 by the library",
    f"attention after 2048 tokens of FP16 cache, and the gated delta net, in a step of at most {MOST_DECODED} rows",
)
LACKS = (
    "attention and the gated delta net in a step of more rows",
    "collectives",
    "embedding, gathering of logits and sampling",
    "what the engine does between steps",
)
"""What a step's sums are made of, and what runs in a step besides and has no prediction here."""


def launches_of(
    tokens: int, ranks: int, logits: int | None = None, head: Head = "fp16", path: Path | None = None
) -> list[Work]:
    """Return every launch of a step that our kernels and the library's products serve, the output head's last.

    `logits` rows are sampled from: all, where nothing is said, as in a decode step; one for each prompt that ends in a
    step that prefills.
    """
    step = Step(tokens, ranks, tokens if logits is None else logits, head, path)
    every: list[Work] = [work for family in families.modules("predict") for work in family.launches(step)]
    return sorted(every, key=lambda work: work.family == "head")


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
