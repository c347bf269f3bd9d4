"""Which operators a CUDA graph holds, and how often each graph was replayed.

Python enters an operator when it runs eagerly and when a graph is captured, never when a graph is replayed. So the
calls of each capture are kept by graph, a step that replays one adds 1 to it, and the report multiplies the two: a
replay costs one addition. Rows of a graph are those that it was captured for, padding included. Runs before the first
request (profiling, warm-up, capture) count for nothing else.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.config import CUDAGraphMode

from appliance.vllm_plugin.sm70 import operators

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm70_kernels.dispatch import Counts


class Graph(NamedTuple):
    """A captured graph, or the graphs between the attention layers of one size, which a step replays together."""

    mode: str
    """full or piecewise."""
    tokens: int
    uniform: bool
    """Whether it was captured for decode steps alone."""

    @property
    def label(self) -> str:
        """The name under which its replays are counted."""
        return f"{self.mode}_{self.tokens}{'' if self.uniform or self.mode == 'piecewise' else '_mixed'}"


class Graphs:
    """The graphs of this process."""

    def __init__(self) -> None:
        self._captured: dict[Graph, Counts] = {}
        self._replays: dict[Graph, int] = {}

    def captured(self, graph: Graph, counts: Counts) -> None:
        """Keep what the capture of a graph entered; a later capture of the same replaces it."""
        self._captured[graph] = counts

    def replayed(self, graph: Graph) -> None:
        """Count one replay."""
        self._replays[graph] = self._replays.get(graph, 0) + 1

    def replays(self) -> dict[str, int]:
        """Return the replays of each graph by its label."""
        return {graph.label: count for graph, count in sorted(self._replays.copy().items())}

    def dispatches(self, entered: Mapping[tuple[str, str], list[int]]) -> dict[str, int]:
        """Return calls (`OPERATOR.PROVIDER`) and rows (`OPERATOR.PROVIDER.rows`): those entered, and the replays'."""
        total = {key: list(entry) for key, entry in entered.items()}
        for graph, replays in self._replays.copy().items():
            for key, (calls, rows) in self._captured.get(graph, {}).items():
                entry = total.setdefault(key, [0, 0])
                entry[0] += replays * calls
                entry[1] += replays * rows
        named = {}
        for (operator, provider), (calls, rows) in total.items():
            named[f"{operator}.{provider}"] = calls
            named[f"{operator}.{provider}.rows"] = rows
        return named


GRAPHS = Graphs()
"""This process's own."""


def dispatches() -> dict[str, int]:
    """Return calls and rows of every operator of this process, and the replays of its graphs."""
    counter = sys.modules.get("sm70_kernels.dispatch")
    replays = {f"compile_graph.replays.{label}": count for label, count in GRAPHS.replays().items()}
    return replays if counter is None else GRAPHS.dispatches(counter.counted()) | replays


class CountsDispatches:
    """Mixed in before our runner: tells the graphs' captures and replays."""

    _own_run = 0
    """How many runs without a request's tokens are under way, one inside the other."""
    _graph: Graph | None = None
    graph_bytes = 0
    """Memory that capturing the graphs took, as vLLM measured it."""

    def _determine_batch_execution_and_padding(self, *arguments: Any, **rest: Any) -> Any:  # noqa: ANN401
        decided = super()._determine_batch_execution_and_padding(*arguments, **rest)  # type: ignore[misc]
        mode, batch = decided[0], decided[1]
        self._graph = None
        if mode != CUDAGraphMode.NONE:
            self._graph = Graph(mode.name.lower(), batch.num_tokens, batch.uniform)
            if not self._own_run:
                GRAPHS.replayed(self._graph)
        return decided

    def _dummy_run(self, *arguments: Any, is_graph_capturing: bool = False, **rest: Any) -> Any:  # noqa: ANN401
        counts, result = self._apart("_dummy_run", *arguments, is_graph_capturing=is_graph_capturing, **rest)
        if is_graph_capturing and self._graph is not None:
            GRAPHS.captured(self._graph, counts)
        return result

    def _dummy_sampler_run(self, *arguments: Any, **rest: Any) -> Any:  # noqa: ANN401
        return self._apart("_dummy_sampler_run", *arguments, **rest)[1]

    def profile_run(self) -> None:
        self._apart("profile_run")

    def capture_model(self) -> int:
        self.graph_bytes = int(super().capture_model())  # type: ignore[misc]
        return self.graph_bytes

    def _apart(self, name: str, *arguments: Any, **rest: Any) -> tuple[Counts, Any]:  # noqa: ANN401
        self._own_run += 1
        try:
            with operators.counted_apart() as counts:
                return counts, getattr(super(), name)(*arguments, **rest)
        finally:
            self._own_run -= 1
