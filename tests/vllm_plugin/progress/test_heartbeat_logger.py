"""The stat logger on records of the engine core. vLLM's base class is played here.

The real one is in tests/system/engine.
"""

from __future__ import annotations

import importlib
import sys
import types
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.vllm_plugin.progress import activity

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDING = "appliance.vllm_plugin.progress.scheduler.recording_scheduler"


@pytest.fixture
def heartbeat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, counting into an Activity of this test's own."""
    loggers = types.ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    monkeypatch.setattr(activity, "ACTIVITY", activity.Activity())
    sys.modules.pop("appliance.vllm_plugin.progress.heartbeat", None)
    yield importlib.import_module("appliance.vllm_plugin.progress.heartbeat")
    sys.modules.pop("appliance.vllm_plugin.progress.heartbeat", None)


def logger(module: Any, scheduler: str | None = RECORDING) -> Any:
    return module.HeartbeatStatLogger(SimpleNamespace(scheduler_config=SimpleNamespace(scheduler_cls=scheduler)))


def scheduled(step: int, running: int = 1, waiting: int = 0) -> Any:
    return SimpleNamespace(step_counter=step, num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=0.5)


def test_only_executed_steps_are_progress(heartbeat: Any) -> None:
    one = logger(heartbeat)
    one.record(scheduled(1), None)
    first = heartbeat.ACTIVITY.step_at
    for _ in range(100):
        one.record(scheduled(1, running=0, waiting=3), None)
    assert (heartbeat.ACTIVITY.step_count, heartbeat.ACTIVITY.step_at) == (1, first), (
        "the engine spins and does nothing"
    )
    assert (heartbeat.ACTIVITY.running, heartbeat.ACTIVITY.waiting) == (0, 3)
    one.record(scheduled(2), None)
    assert heartbeat.ACTIVITY.step_count == 2
    assert heartbeat.ACTIVITY.step_at > first
    assert heartbeat.ACTIVITY.steps_record == "on"


@pytest.mark.parametrize("scheduler", [None, "somebody.elses.Scheduler"])
def test_under_another_scheduler_every_record_is_a_step(heartbeat: Any, scheduler: str | None) -> None:
    one = logger(heartbeat, scheduler)
    for _ in range(3):
        one.record(scheduled(0), None)
    assert heartbeat.ACTIVITY.step_count == 3
    assert heartbeat.ACTIVITY.steps_record == f"off: --scheduler-cls is {scheduler}"


def test_tokens_and_finished_requests_add_up(heartbeat: Any) -> None:
    one = logger(heartbeat)
    for finished, prompt, generated in (([], 0, 2), ([object()], 700, 1), ([object(), object()], 0, 3)):
        iteration = SimpleNamespace(
            finished_requests=finished,
            prompt_token_stats=SimpleNamespace(total=prompt),
            num_generation_tokens=generated,
        )
        one.record(None, iteration, mm_cache_stats=None, engine_idx=0)
    counted = heartbeat.ACTIVITY
    assert (counted.finished, counted.prompt_tokens, counted.generation_tokens) == (3, 700, 6)
    assert counted.step_count == 0
