"""What a step of the model runs, piece by piece: launches of our kernels, and products that the library does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from sm70_kernels.predict import library

if TYPE_CHECKING:
    from sm70_kernels.predict.constants import Corner
    from sm70_kernels.predict.launch import Launch
    from sm70_kernels.predict.prediction import Prediction
    from sm70_kernels.registry import Specialisation

Head = Literal["fp16", "fp8"]
"""The output head's weights. FP16: Qwen/Qwen3.8-27B-FP8 and the others whose list of exceptions has it, by the library;
FP8 with a scale a column: the mixed NVFP4 checkpoint, by our kernel (docs/checkpoints.md, "Target checkpoints")."""

Path = Literal["native", "expanded"]
"""How a dense layer is done: by one kernel, or by expanding its weights for the library."""


MOST_DECODED = 64
"""Rows up to which a step is taken for one that decodes, a sequence a row."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of `tokens` rows on a rank of `ranks`, of which `logits` rows are sampled from.

    `path` overrides what the table says of the dense layers.
    """

    tokens: int
    ranks: int
    logits: int
    head: Head = "fp16"
    path: Path | None = None

    @property
    def decodes(self) -> bool:
        """Whether each row is the next token of a sequence of its own; a step of more rows prefills."""
        return self.tokens <= MOST_DECODED


@dataclass(frozen=True, slots=True)
class Planned:
    """A launch of a step: the layer's `part`, the sum it counts in (`dense`, `norm`, `head`), its count in a step."""

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
        # Here, so that a family's predict.py stays pure data: the emulator takes numpy.
        from sm70_kernels.predict.prediction import predict

        return predict(self.spec, self.launch, corner)


@dataclass(frozen=True, slots=True)
class Called:
    """A product of a step, or a pass over its elements, that a library does, as Planned."""

    part: str
    family: str
    count: int
    product: library.Product | library.Pass

    @property
    def name(self) -> str:
        """The library's."""
        return self.product.name

    def predict(self, corner: Corner = "expected") -> library.Estimate:
        """Return what its roofline says."""
        return library.estimate(self.product, corner)


Work: TypeAlias = "Planned | Called"
Found: TypeAlias = "Prediction | library.Estimate"
