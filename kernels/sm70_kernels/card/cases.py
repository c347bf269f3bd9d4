"""Small sizes of the card's kernels, on which they are proven: one for each specialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels.cases import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.cases import Scope


def cases(_: Scope) -> Iterator[Case]:
    """Yield a case for each specialisation, by the constants that choose it."""
    yield Case("card_empty", {"count": 40})
    for threads in (64, 256):
        for loads in (1, 2, 4, 8):
            yield Case("card_read", {"threads": threads, "in_flight": loads, "rounds": 3})
    for space in range(3):
        yield Case("card_latency", {"space": space, "steps": 21, "stride": 132})
    for space in (1, 2):
        yield Case("card_rate", {"space": space, "trips": 3})
    for chains in (1, 4):
        yield Case("card_tensor", {"chains": chains, "trips": 3})
    yield Case("card_barrier", {"rounds": 9})
    yield Case("card_fetch", {"trips": 2})
