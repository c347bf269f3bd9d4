"""vLLM's own schedulers, which also record each step. Only the scheduler knows a step's prefill and decode tokens.

The stat logger in the API process cannot: it learns of a prompt when its last chunk ends, and of no chunk before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from appliance import paths, rundir
from appliance.rundir.step_line import StepLine
from appliance.vllm_plugin.progress.step_record import StepRecord, StepShape, shape
from appliance.vllm_plugin.requests.contained_grammar import EndsFailedGrammars
from appliance.vllm_plugin.sm70.sentinels import EndsBrokenRequests

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class _Recording:
    """Mixed in before a scheduler. A step is recorded when its output arrives, `t` being that moment."""

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401 - handed through to vLLM
        super().__init__(**arguments)
        self._step_count = 0
        self._shapes: dict[int, StepShape] = {}
        self._record = StepRecord(paths.run_dir())

    def schedule(self) -> Any:  # noqa: ANN401
        output = super().schedule()  # type: ignore[misc]
        if output.num_scheduled_tokens:
            requests = self.requests  # type: ignore[attr-defined]
            # vLLM has already added the new tokens to num_computed_tokens. With asynchronous scheduling the next step
            # is scheduled before this one's output arrives, so the shape is kept until then.
            self._shapes[id(output)] = shape(
                (request.num_computed_tokens - new, new, request.num_prompt_tokens, request.num_tokens)
                for request, new in ((requests[name], new) for name, new in output.num_scheduled_tokens.items())
            )
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:  # noqa: ANN401
        now = rundir.clock()
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        step = self._shapes.pop(id(scheduler_output), None)
        if step is not None:
            self._step_count += 1
            running, waiting = self.get_request_counts()  # type: ignore[attr-defined]
            # Told by vLLM under --cudagraph-metrics alone.
            graph = model_runner_output.cudagraph_stats
            self._record.append(
                StepLine(
                    t=round(now, 6),
                    step_count=self._step_count,
                    running=running,
                    waiting=waiting,
                    requests=step.requests,
                    prefill_tokens=step.prefill_tokens,
                    decode_tokens=step.decode_tokens,
                    generated_tokens=sum(
                        len(output.new_token_ids) for client in outputs.values() for output in client.outputs
                    ),
                    graph=None if graph is None else graph.runtime_mode,
                )
            )
        for client in outputs.values():
            if client.scheduler_stats is not None:
                # Free without data parallelism, where alone vLLM uses it.
                client.scheduler_stats.step_counter = self._step_count
                # The record has it; vLLM would log a table of it every ten seconds and do nothing else with it.
                client.scheduler_stats.cudagraph_stats = None
        return outputs

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        self._record.close()


class RecordingScheduler(_Recording, EndsBrokenRequests, EndsFailedGrammars, Scheduler):  # type: ignore[misc] # vllm is not analysed
    """For synchronous scheduling."""


class RecordingAsyncScheduler(_Recording, EndsBrokenRequests, EndsFailedGrammars, AsyncScheduler):  # type: ignore[misc]
    """For asynchronous scheduling."""


def recording_scheduler(*, vllm_config: VllmConfig, **arguments: Any) -> Scheduler:  # noqa: ANN401
    """What --scheduler-cls names: vLLM calls it as it would call the class, and gets the one it would have chosen."""
    chosen = RecordingAsyncScheduler if vllm_config.scheduler_config.async_scheduling else RecordingScheduler
    return chosen(vllm_config=vllm_config, **arguments)
