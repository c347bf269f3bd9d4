"""Results of made-up benchmarks, for tests of what reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from appliance.bench.result import (
    Contract,
    Counted,
    Environment,
    Metric,
    Result,
    Speculation,
    Stats,
    System,
    Totals,
    Trace,
    Workload,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def trace(samples: Sequence[float], label: str = "1", metric: Metric = "decode_step_ms") -> Trace:
    return Trace(metric=metric, label=label, stats=Stats.of(samples), samples=tuple(samples))


KINDS: dict[str, Literal["decode", "serve", "stream"]] = {
    "stable_decode_steps": "decode",
    "serving": "serve",
    "token_stream": "stream",
}
"""The verb that measures it."""


def decode(*traces: Sequence[float], **workload: Any) -> Result:
    """A result of `bench decode` under the contract of the 2K references."""
    return made("stable_decode_steps", tuple(trace(each, str(n)) for n, each in enumerate(traces, 1)), **workload)


def serving(completed: int, failed: int, duration_s: float, **workload: Any) -> Result:
    """A result of `bench serve` under the 32K contract."""
    totals = Totals(
        requests=completed + failed,
        completed=completed,
        failed=failed,
        duration_s=duration_s,
        input_tokens=completed * 32768,
        output_tokens=completed * 256,
    )
    contract = {
        "input_tokens": 32768,
        "requests": completed + failed,
        "dataset": "random",
        "seed": 1234,
        "range_ratio": 0.0,
        "request_rate": "all_at_once",
    }
    failures = (Counted(reason="HTTP 500", count=failed, unit="requests"),) if failed else ()
    return made("serving", (), totals=totals, failures=failures, **{**contract, **workload})


def made(
    measured: Any,
    traces: tuple[Trace, ...],
    *,
    totals: Totals | None = None,
    failures: tuple[Counted, ...] = (),
    screen: str | None = None,
    **workload: Any,
) -> Result:
    asked = {
        "model": "Qwen3.8-27B",
        "input_tokens": 2048,
        "output_tokens": 256,
        "concurrency": 32,
        "requests": 32,
        "sampling": {"temperature": 0.0, "ignore_eos": True},
        "speculation": Speculation(),
        **workload,
    }
    return Result(
        kind=KINDS[measured],
        at=datetime(2026, 11, 29, 12, tzinfo=UTC),
        title="made up",
        screen=screen,
        contract=Contract(
            workload=Workload(measured=measured, **asked), system=System(hardware="V100", gpus=4, tensor_parallel=4)
        ),
        environment=Environment(appliance="0.1.0"),
        traces=traces,
        totals=totals,
        failures=failures,
    )
