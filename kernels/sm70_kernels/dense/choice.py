"""Which tactic the dense operators use: what a tuning record says, else the table's first. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm70_kernels.dense import table

if TYPE_CHECKING:
    from sm70_kernels.dense.table import Layer, Tactic


@dataclass(slots=True)
class Choices:
    """What was timed on this card: a tactic by layer and bucket of rows, and the rows from which a layer expands."""

    tactics: dict[tuple[Layer, int], Tactic] = field(default_factory=dict)
    expand_from: dict[Layer, int] = field(default_factory=dict)


_ADOPTED = Choices()


class _Expansion:
    allowed = True


def adopt(choices: Choices) -> None:
    """Let the operators use these choices from now on; graphs that are captured already keep what they have."""
    _ADOPTED.tactics = dict(choices.tactics)
    _ADOPTED.expand_from = dict(choices.expand_from)


def tactic_for(layer: Layer, rows: int) -> Tactic:
    """Return the tactic that serves a number of rows."""
    if rows <= table.INVARIANT_ROWS and _ADOPTED.tactics:
        found = _ADOPTED.tactics.get((layer, table.bucket_of(rows)))
        if found:
            return found
    return table.candidates(layer, rows)[0]


def expands(layer: Layer, rows: int) -> bool:
    """Say whether so many rows are served by expanding the weights to FP16 for a library's matrix product."""
    return _Expansion.allowed and rows >= _ADOPTED.expand_from.get(layer, table.EXPAND_FROM)


def allow_expansion(allowed: bool) -> None:
    """Let the operators expand weights, or serve any number of rows without, whatever choices are adopted."""
    _Expansion.allowed = allowed
