"""Our worker for CUDA: vLLM's, with our model runner."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from appliance.vllm_plugin.sm70.graph_dispatches import CountsDispatches
from appliance.vllm_plugin.sm70.runner import Sm70Steps
from appliance.vllm_plugin.sm70.worker_routes import SettlesRoutes

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sm70ModelRunner(CountsDispatches, Sm70Steps, GPUModelRunner):  # type: ignore[misc]
    """vLLM's runner for CUDA with our guards."""


class Sm70Worker(SettlesRoutes, Worker):  # type: ignore[misc]
    """One rank on one GPU. Raises RuntimeError where vLLM would build its second runner, which has no guards."""

    def init_device(self) -> None:
        if self.use_v2_model_runner:
            raise RuntimeError("VLLM_USE_V2_MODEL_RUNNER=1 is not served on SM70: unset it")
        with _our_runner():
            super().init_device()


@contextmanager
def _our_runner() -> Iterator[None]:
    # vLLM's worker looks the class up when it builds the runner, and offers no other door.
    gpu_model_runner.GPUModelRunner = Sm70ModelRunner
    try:
        yield
    finally:
        gpu_model_runner.GPUModelRunner = GPUModelRunner
