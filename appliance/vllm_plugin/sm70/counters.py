"""What this process counts: steps, broken requests, and the calls of every operator by who served it.

A count is one dictionary entry that is replaced or added to by the step's thread, without a lock; others may read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from appliance.acceleration.routes import OWNER, ROUTES

if TYPE_CHECKING:
    from collections.abc import Callable

ALONE = {
    "fp8_prefill": ("dense_w8a16.expansion", "dense_w8a16_silu_mul.expansion"),
    "mixed_batch_resident_decode": (),
    "long_context": ("attention_reduce.kernel",),
    "dual_attention_b16": ("attention_decode_dual.kernel",),
}
"""What is dispatched by a route that shares its operators with another; of all others, whatever its kernels served."""


class Counters:
    """Named counts, such as `compile_graph.eager`; `dispatches` gives those of operators and graphs when asked."""

    def __init__(self, dispatches: Callable[[], dict[str, int]] = dict) -> None:
        self._counts: dict[str, int] = {}
        self._dispatches = dispatches

    def count(self, name: str, times: int = 1) -> None:
        """Add to a count."""
        self._counts[name] = self._counts.get(name, 0) + times

    def snapshot(self) -> dict[str, int]:
        """Return every count so far, by name."""
        return dict(sorted((self._counts.copy() | self._dispatches()).items()))

    def of_route(self, route: str, *, serves: bool = True) -> dict[str, int]:
        """Return the counts of one route.

        `dispatched` is how often its own code ran, 0 where it never did. A route that does not serve counts no kernel
        of an operator that another route owns. Counts that begin with the route's name follow by what comes after the
        dot, then those of its operators: `OPERATOR.PROVIDER` calls, and their rows.
        """
        operators = ROUTES[route].operators
        kernels = ALONE.get(route, tuple(f"{each}.kernel" for each in operators if serves or OWNER[each] == route))
        found, served = {"dispatched": 0}, {}
        # A route and an operator may have the same name.
        for names in (self._counts.copy(), self._dispatches()):
            for name, count in sorted(names.items()):
                base, _, rest = name.partition(".")
                if (base in operators and rest) or name in kernels:
                    served[name] = count
                elif base == route:
                    found[rest or "dispatched"] = count
        found["dispatched"] += sum(served.get(name, 0) for name in kernels)
        return found | served


def _of_this_process() -> dict[str, int]:
    # Not imported for this: a process that binds no layer has dispatched nothing.
    graphs = sys.modules.get("appliance.vllm_plugin.sm70.graph_dispatches")
    return {} if graphs is None else graphs.dispatches()


COUNTERS = Counters(_of_this_process)
"""This process's own."""
