"""The questions to the device: one size each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels.cases import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.cases import Scope


def cases(_: Scope) -> Iterator[Case]:
    """Yield the questions to the device itself."""
    yield Case("mma_lanes", {"seed": 1})
    yield Case("dequant_codes", {})
    for named in (1, 0):
        yield Case("barrier_control", {"named": named, "rounds": 7})
