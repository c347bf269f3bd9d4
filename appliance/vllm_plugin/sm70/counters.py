"""How often each route's code was entered in this process: by Python, or while a graph was captured.

The replay of a CUDA graph enters no Python and counts nothing; steps that were replays are told by the step record.
"""

from __future__ import annotations


class Counters:
    """Named counts, such as `fp8_dense` or `fp8_dense.rows32`; one instance a worker, counted by its step thread.

    Reading while another thread counts is safe: a count is one dictionary entry that is replaced.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, name: str, times: int = 1) -> None:
        """Add to a count."""
        self._counts[name] = self._counts.get(name, 0) + times

    def snapshot(self) -> dict[str, int]:
        """Return every count so far, by name."""
        return dict(sorted(self._counts.copy().items()))

    def of_route(self, route: str) -> dict[str, int]:
        """Return the counts of one route: that of its own name under `dispatched`, the others by what follows the dot.

        A route that was never entered has `dispatched` 0.
        """
        found = {"dispatched": 0}
        for name, count in self.snapshot().items():
            base, _, rest = name.partition(".")
            if base == route:
                found[rest or "dispatched"] = count
        return found


COUNTERS = Counters()
"""This process's own."""
