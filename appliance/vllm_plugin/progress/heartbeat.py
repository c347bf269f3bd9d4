"""vLLM's stat-logger plugin: counts engine steps and tokens for the heartbeat that the middleware writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.loggers import StatLoggerBase

from appliance import rundir
from appliance.vllm_plugin.progress.activity import ACTIVITY

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

RECORDING_SCHEDULER = "appliance.vllm_plugin.progress.scheduler.recording_scheduler"
"""The --scheduler-cls with which each step is recorded."""


class HeartbeatStatLogger(StatLoggerBase):  # type: ignore[misc] # vllm is not analysed
    """Its `record` runs on the API server's event loop, once for each message of the engine core."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.engine_index = engine_index
        scheduler = vllm_config.scheduler_config.scheduler_cls
        self.counts_executed = scheduler == RECORDING_SCHEDULER
        ACTIVITY.steps_record = "on" if self.counts_executed else f"off: --scheduler-cls is {scheduler}"

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,  # noqa: ARG002, ANN401 - the base class's signature
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Take over what one engine step reports."""
        if scheduler_stats is not None:
            # The scheduler reports on empty rounds too, a thousand a second while no request can be scheduled: only
            # our scheduler's count of executed steps tells a spinning engine from a working one.
            step_count = scheduler_stats.step_counter if self.counts_executed else ACTIVITY.step_count + 1
            if step_count != ACTIVITY.step_count:
                ACTIVITY.step_count, ACTIVITY.step_at = step_count, rundir.clock()
            ACTIVITY.running = scheduler_stats.num_running_reqs
            ACTIVITY.waiting = scheduler_stats.num_waiting_reqs
            ACTIVITY.kv_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            ACTIVITY.finished += len(iteration_stats.finished_requests)
            ACTIVITY.prompt_tokens += iteration_stats.prompt_token_stats.total
            ACTIVITY.generation_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        """Nothing to say: phase.json tells that."""
