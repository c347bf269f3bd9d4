"""The cases on which operators are proven, self-tested and timed: one generator for all three. Pure data.

A family's `cases.py` has `cases(scope)`. Sizes come from Qwen3.8-27B's shapes (`qwen38.py`), split over 1, 2 and 4
ranks, and from the edges of the kernels' tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sm70_kernels import families

if TYPE_CHECKING:
    from collections.abc import Mapping

Scope = Literal["selftest", "suite", "benchmark"]
"""`selftest`: a handful, at each engine's load. `suite`: everything, on any GPU. `benchmark`: what a step runs."""

DECODE_TOKENS = (1, 2, 7, 8, 16, 31, 32)
PREFILL_TOKENS = (33, 257, 2048)
BENCHMARK_TOKENS = (1, 8, 32, 2048, 8192)


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of one operator. `sizes` are the arguments of that operator's input maker."""

    operator: str
    sizes: Mapping[str, int]

    @property
    def name(self) -> str:
        """The case in one word, such as `rms_norm[hidden=5120,tokens=8]`."""
        return f"{self.operator}[{','.join(f'{key}={value}' for key, value in sorted(self.sizes.items()))}]"


def tokens_of(scope: Scope) -> tuple[int, ...]:
    """Return the token counts of a scope."""
    every = {"selftest": (1, 8), "suite": DECODE_TOKENS + PREFILL_TOKENS, "benchmark": BENCHMARK_TOKENS}
    return every[scope]


def cases(operator: str, scope: Scope) -> list[Case]:
    """Return the cases of one operator."""
    every = (case for family in families.modules("cases") for case in family.cases(scope))
    return [case for case in every if case.operator == operator]
