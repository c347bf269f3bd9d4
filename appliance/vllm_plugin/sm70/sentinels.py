"""A request whose logits are not finite ends with an error, and the engine lives.

The runner marks it (`BrokenRows`), vLLM's `ModelRunnerOutput.num_nans_in_logits` carries the mark, and the scheduler
ends it (`EndsBrokenRequests`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("vllm.appliance.sentinels")

SCHEDULER = f"{__name__}.guarded_scheduler"
"""The --scheduler-cls for engines that have no other."""


def broken_rows(logits: torch.Tensor) -> torch.Tensor:
    """Return bool[rows]: whether a row of logits [rows, vocabulary] holds NaN or an infinity.

    To be asked before masks put -inf into them. One pass: a sum of finite logits is finite in float32.
    """
    return ~logits.sum(dim=-1, dtype=torch.float32).isfinite()


def broken_requests(broken: Sequence[bool], rows: Sequence[int], names: Sequence[str]) -> dict[str, int]:
    """Return how many broken rows each request has, for those that have any; `rows` are each request's sampled rows."""
    counts: dict[str, int] = {}
    start = 0
    for name, count in zip(names, rows, strict=True):
        bad = sum(map(bool, broken[start : start + count]))
        if bad:
            counts[name] = bad
        start += count
    return counts


class BrokenRows:
    """The mark of one step, on its way to the host; read after the step's tokens have arrived there."""

    def __init__(self, logits: torch.Tensor, rows: Sequence[int], names: Sequence[str]) -> None:
        self._rows, self._names = list(rows), list(names)
        self.on_device = broken_rows(logits)
        pinned = logits.device.type != "cpu"
        self._on_host = torch.empty(self.on_device.shape, dtype=torch.bool, pin_memory=pinned)
        self._on_host.copy_(self.on_device, non_blocking=pinned)

    def requests(self) -> dict[str, int]:
        """Return the broken requests."""
        if not bool(self._on_host.any()):
            return {}
        return broken_requests(self._on_host.tolist(), self._rows, self._names)


class EndsBrokenRequests:
    """Mixed in before a scheduler: ends each request that the runner marked, and counts them."""

    nonfinite_requests = 0
    kv_cache_manager: Any
    _marked: frozenset[str] = frozenset()

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:  # noqa: ANN401
        marks = model_runner_output.num_nans_in_logits or {}
        self._marked = frozenset(name for name, count in marks.items() if count)
        return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]

    def _update_request_with_output(self, request: Any, new_token_ids: list[int]) -> tuple[list[int], bool]:  # noqa: ANN401
        request_id = request.request_id
        kept, stopped = super()._update_request_with_output(request, new_token_ids)  # type: ignore[misc]
        if request_id not in self._marked or (stopped and request.status == RequestStatus.FINISHED_ERROR):
            return kept, stopped
        self.nonfinite_requests += 1
        logger.error(
            "Request %s ends with an error: its logits are not finite (NaN or infinity) after %d tokens; %d such "
            "requests since the start",
            request_id,
            request.num_computed_tokens,
            self.nonfinite_requests,
        )
        request.status = RequestStatus.FINISHED_ERROR
        # Pages that it filled may hold the cause: nobody else may find them in the prefix cache.
        manager = self.kv_cache_manager
        manager.evict_blocks({block for group in manager.get_block_ids(request_id) for block in group})
        # The output must not carry a token that was sampled from such logits.
        return [], True


class GuardedScheduler(EndsBrokenRequests, Scheduler):  # type: ignore[misc]
    """For synchronous scheduling."""


class GuardedAsyncScheduler(EndsBrokenRequests, AsyncScheduler):  # type: ignore[misc]
    """For asynchronous scheduling."""


def guarded_scheduler(*, vllm_config: Any, **arguments: Any) -> Scheduler:  # noqa: ANN401
    """What `SCHEDULER` names: vLLM calls it as it would call the class."""
    chosen = GuardedAsyncScheduler if vllm_config.scheduler_config.async_scheduling else GuardedScheduler
    return chosen(vllm_config=vllm_config, **arguments)
