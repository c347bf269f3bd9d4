"""Shapes of the gates, by the rows and heads of a rank, and rows that no vector divides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels import qwen38
from sm70_kernels.cases import Case, tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.cases import Scope


def cases(scope: Scope) -> Iterator[Case]:
    """Yield every case of a scope."""
    yield from _output_gate_cases(scope)
    yield from _silu_and_mul_cases(scope)


def _output_gate_cases(scope: Scope) -> Iterator[Case]:
    """Yield the output gate of full attention by the heads of a rank."""
    for ranks in qwen38.RANKS if scope == "suite" else (4,):
        for tokens in tokens_of(scope) if ranks == 4 else (1, 9):
            yield Case("sigmoid_gate", {"tokens": tokens, "heads": qwen38.QUERY_HEADS // ranks, "head": qwen38.HEAD})
    if scope != "suite":
        return
    for head in (1, 100, 129):
        yield Case("sigmoid_gate", {"tokens": 3, "heads": 3, "head": head})
    yield Case("sigmoid_gate", {"tokens": 0, "heads": 6, "head": qwen38.HEAD})


def _silu_and_mul_cases(scope: Scope) -> Iterator[Case]:
    """Yield the gated MLP's rows of a rank, and in the suite rows that no vector divides."""
    for ranks in qwen38.RANKS if scope == "suite" else (4,):
        for tokens in tokens_of(scope) if ranks == 4 else (1, 9):
            yield Case("silu_and_mul", {"tokens": tokens, "width": qwen38.INTERMEDIATE // ranks})
    if scope == "suite":
        for width in (1, 7, 8, 2047, 2048, 2056):
            yield Case("silu_and_mul", {"tokens": 3, "width": width})
        yield Case("silu_and_mul", {"tokens": 0, "width": 4352})
