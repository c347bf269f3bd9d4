"""Our worker for the reference platform: vLLM's CPU worker, with our model runner."""

from __future__ import annotations

from vllm.v1.worker import cpu_worker, mamba_utils
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from appliance.vllm_plugin.sm70.graph_dispatches import CountsDispatches
from appliance.vllm_plugin.sm70.kv_cache import copy_states_on_host
from appliance.vllm_plugin.sm70.runner import Sm70Steps
from appliance.vllm_plugin.sm70.worker_routes import SettlesRoutes


class Sm70ReferenceModelRunner(CountsDispatches, Sm70Steps, CPUModelRunner):  # type: ignore[misc]
    """vLLM's runner for CPUs with our guards; it zeroes new pages too, as the runner for CUDA does."""

    def _postprocess_triton(self) -> None:
        super()._postprocess_triton()
        # Without a GPU there is no Triton; vLLM's CPU runner replaces a kernel in the same way.
        mamba_utils.batch_memcpy = copy_states_on_host


class Sm70ReferenceWorker(SettlesRoutes, CPUWorker):  # type: ignore[misc]
    """One rank on some cores."""

    def init_device(self) -> None:
        theirs = cpu_worker.CPUModelRunner
        # vLLM's worker looks the class up when it builds the runner, and offers no other door.
        cpu_worker.CPUModelRunner = Sm70ReferenceModelRunner
        try:
            super().init_device()
        finally:
            cpu_worker.CPUModelRunner = theirs
