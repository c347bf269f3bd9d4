"""What both of our workers do for the routes: settle them before the model is built, and tell them until the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed import get_tp_group

from appliance.vllm_plugin.sm70 import activate, operators, resident, route_setup
from appliance.vllm_plugin.sm70.counters import COUNTERS

if TYPE_CHECKING:
    from appliance.vllm_plugin.sm70.route_setup import Settled


class SettlesRoutes:
    """Mixed in before vLLM's worker."""

    vllm_config: Any
    rank: int
    model_runner: Any
    _settled: Settled | None = None

    def load_model(self, *arguments: Any, **rest: Any) -> None:  # noqa: ANN401 - handed through to vLLM
        """Settle the routes, then build the model. The device and the groups are there, and no layer is yet."""
        activate.activate()
        # What self-tests and trials launch serves nobody.
        with operators.counted_apart():
            self._settled = route_setup.settle(self.vllm_config, self.rank, get_tp_group())
            super().load_model(*arguments, **rest)  # type: ignore[misc]

    def compile_or_warm_up_model(self) -> Any:  # noqa: ANN401 - whatever vLLM's returns
        """Compile, capture and warm up; then say what this rank's memory holds."""
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        resident.tell(self.model_runner)
        return result

    def shutdown(self) -> None:
        """End the rank's report with what its counters have come to."""
        if self._settled is not None and self._settled.reporter is not None:
            self._settled.reporter.close()
        super().shutdown()  # type: ignore[misc]

    def sm70_counters(self) -> dict[str, int]:
        """Return this rank's counters by name; called over collective_rpc."""
        return COUNTERS.snapshot()
