"""When two times are different. Pure, no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIKE = 1.03
"""Times within this factor of the best are taken for equal, and the first in the candidates' order wins: a difference
under 3 % decides nothing (kernels/MODEL.md, "Held to times that V100s took")."""


def first_of_the_best(times: Sequence[float]) -> int:
    """Return the index of the first time that is as good as the best."""
    best = min(times)
    return next(index for index, time in enumerate(times) if time <= best * ALIKE)
