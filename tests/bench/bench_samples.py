"""Recorded steps and vLLM results with known answers, and whole results made of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from appliance.bench import serve, statistics
from appliance.bench.result import (
    MEASURED,
    Clocks,
    Contract,
    Counted,
    Environment,
    Result,
    Speculation,
    System,
    Totals,
    Trace,
    Workload,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from appliance.bench.options import Load

WARM_UP = 4

V100_2K = [29.489] * 218 + [29.511] * 22 + [29.877] * 2 + [30.390] * 2
"""244 steps whose mean prints as 29.502 and whose percentiles are the published ones, in milliseconds."""

V100_2K_BEFORE = [36.285] * 171 + [36.286] * 73
"""244 steps whose mean prints as 36.285, chosen so that 18.70% comes out, as it can of means that are not rounded."""

A800_2K = [33.449] * 218 + [33.613] * 22 + [35.882] * 2 + [37.996] * 2

V100_8K = (
    [36.142] * 125 + [36.152] * 100 + [36.198] * 22 + [36.220] * 3,
    [36.142] * 124 + [36.152] * 100 + [36.198] * 23 + [36.220] * 3,
)
"""Two traces of 250 steps, with the published statistics when pooled."""


def record(intervals_ms: Sequence[float], batch: int = 32, *, start: float = 1000.0, first: int = 1) -> list[str]:
    """Lines of steps.jsonl as the engine writes them: prefill, warm-up, the given steps, and the batch's end."""
    lines: list[dict[str, Any]] = []
    at, number = start, first

    def step(ms: float, requests: int, prefill: int, decode: int, running: int, **more: Any) -> None:
        nonlocal at, number
        at += ms / 1000
        line = {"t": round(at, 6), "step": number, "running": running, "waiting": 0, "requests": requests}
        lines.append({**line, "prefill_tokens": prefill, "decode_tokens": decode, "generated_tokens": requests, **more})
        number += 1

    for joined in range(4, batch + 1, 4):
        step(900.0, joined, 8192, joined - 4, batch)
    # The first decode step follows a prefill step, and the first full ones are warm-up.
    for _ in range(1 + WARM_UP):
        step(31.0, batch, 0, batch, batch)
    for ms in intervals_ms:
        step(ms, batch, 0, batch, batch)
    for left in range(batch - 4, -1, -4):
        step(20.0, left or 1, 0, left or 1, left)
    return [json.dumps(line, separators=(",", ":")) for line in lines]


def serving(load: Load, itls_ms: Sequence[float], duration_s: float) -> dict[str, Any]:
    """What vLLM's benchmark writes for so many inter-token latencies, dealt out to the requests."""
    each = len(itls_ms) // load.requests
    return {
        "duration": duration_s,
        "completed": load.requests,
        "failed": 0,
        "input_lens": [load.input_tokens] * load.requests,
        "output_lens": [load.output_tokens] * load.requests,
        "ttfts": [12.5] * load.requests,
        "itls": [[ms / 1000 for ms in itls_ms[i * each : (i + 1) * each]] for i in range(load.requests)],
        "errors": [""] * load.requests,
    }


def bimodal() -> list[float]:
    """128 times 255 latencies with the published 32K distribution of the V100s: 30.23% above 4 s, p50 61.94 ms."""
    fast = [60.84] * 16001 + [61.94] * 399
    slow = [4500.0] * 6601 + [4844.37] * 627 + [5000.0] * 2311 + [5103.26] * 328
    rest = 128 * 255 - len(fast) - len(slow)
    missing = 2059.92 * 128 * 255 - sum(fast) - sum(slow)
    return fast + [missing / rest] * rest + slow


def workload(**changes: Any) -> Workload:
    told: dict[str, Any] = {
        "measured": "stable_decode_steps",
        "model": "Qwen3.8-27B",
        "input_tokens": 2048,
        "output_tokens": 256,
        "concurrency": 32,
        "requests": 64,
        "sampling": {"temperature": 0.0, "ignore_eos": True},
        "speculation": Speculation(),
    }
    return Workload(**{**told, **changes})


SYSTEM = System(hardware="Tesla V100-SXM2-32GB", gpus=4, tensor_parallel=4, engine="vLLM 0.19.1 (v100)")

ENVIRONMENT = Environment(
    appliance="0.1.0",
    image="v100-appliance:v100@sha256:12ab",
    kernel_sha256="ab" * 32,
    profile="qwen38_27b_fp8_c32",
    topology=("GPU0 Tesla V100-SXM2-32GB", "NVLink joins every pair."),
    driver="570.172.08",
    versions={"vllm": "0.19.1"},
    routes={"fp8_dense": "enabled", "gdn_decode": "disabled: user_override"},
    clocks=(Clocks(gpu=0, sm_mhz=1530, memory_mhz=877, power_limit_w=300, temperature_c=61, throttle=("power cap",)),),
)


def result(traces: Iterable[Trace], **changes: Any) -> Result:
    told: dict[str, Any] = {
        "kind": "decode",
        "at": datetime(2026, 11, 29, 12, 0, tzinfo=UTC),
        "title": "a result",
        "contract": Contract(workload=workload(measured=MEASURED[changes.get("kind", "decode")]), system=SYSTEM),
        "environment": ENVIRONMENT,
        "traces": tuple(traces),
    }
    return Result(**{**told, **changes})


def decoded(concurrency: int = 32, input_tokens: int = 2048, rate: float = 1085.0) -> Result:
    """Two repeats of stable steps."""
    contract = Contract(workload=workload(concurrency=concurrency, input_tokens=input_tokens), system=SYSTEM)
    return result(
        (
            statistics.trace("decode_step_ms", "1", V100_2K),
            statistics.trace("decode_step_ms", "2", [ms + 0.033 for ms in V100_2K]),
        ),
        title=f"C{concurrency}, {input_tokens} in",
        contract=contract,
        rates={"output_tokens_per_s": rate},
        exclusions=(Counted(reason="prompt tokens were computed", count=18, unit="steps"),),
        notes=("only stable decode steps are in the figures",),
    )


def screened() -> Result:
    """A serving screen in which one request failed."""
    served = serve.Served(serve.CONTRACT, serving(serve.CONTRACT, bimodal(), 2972.63), {})
    return result(
        serve.result_traces(served),
        kind="serve",
        title="32K <serving> | screen",
        screen="40 of the contract's 128 requests",
        contract=Contract(workload=workload(measured="serving", input_tokens=32768, requests=40), system=SYSTEM),
        totals=Totals(
            requests=40,
            completed=39,
            failed=1,
            duration_s=342.13,
            input_tokens=39 * 32768,
            output_tokens=39 * 256,
            cached_tokens=0,
        ),
        failures=(Counted(reason="Internal Server Error", count=1, unit="requests"),),
    )
