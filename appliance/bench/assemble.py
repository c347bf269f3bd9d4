"""A result out of its parts: what was asked for, on what, what came out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from appliance.bench import decode, environment, serve, stream
from appliance.bench.options import told
from appliance.bench.result import Contract, Result, Workload
from appliance.bench.traces import exclusions

if TYPE_CHECKING:
    from appliance.bench.client import Served, Target
    from appliance.bench.decode import Decoded
    from appliance.bench.options import Load
    from appliance.bench.result import Clocks
    from appliance.bench.stream import Streamed


def of_decode(
    target: Target, served: Served, load: Load, decoded: Decoded, clocks: tuple[Clocks, ...], labels: dict[str, Any]
) -> Result:
    """Return the result of `bench decode`. Raises CheckError where no step was stable."""
    measured = decode.result_traces(decoded)
    speculation = environment.speculation(target.plan)
    workload = _workload(
        target,
        served,
        load,
        measured="stable_decode_steps",
        requests=load.requests * load.repeats,
        dataset="random common words, as token IDs",
        cached_prompt=decoded.cached_requests > 0 if tells_cached(target) else None,
    )
    return Result(
        kind="decode",
        contract=Contract(workload=workload, system=environment.system(target.plan)),
        traces=measured,
        rates={"output_tokens_per_s": decode.tokens_per_s(decoded)},
        exclusions=exclusions(decoded.found),
        failures=decode.failures(decoded),
        acceptance_length=decode.acceptance(decoded, load.concurrency) if speculation.tokens else None,
        **_common(target, load, clocks, labels, "decode step", decode.notes(decoded, target, load)),
    )


def of_stream(
    target: Target,
    served: Served,
    streamed: Streamed,
    clocks: tuple[Clocks, ...],
    labels: dict[str, Any],
    *,
    dataset: str,
) -> Result:
    """Return the result of `bench stream`."""
    load, tells = streamed.load, tells_cached(target)
    workload = _workload(
        target,
        served,
        load,
        measured="token_stream",
        requests=load.requests * load.repeats,
        dataset=dataset,
        cached_prompt=stream.cached_prompt(streamed, tells=tells),
    )
    return Result(
        kind="stream",
        contract=Contract(workload=workload, system=environment.system(target.plan)),
        traces=stream.result_traces(streamed),
        rates=stream.rates(streamed),
        totals=stream.totals(streamed, tells=tells),
        failures=stream.failures(streamed),
        **_common(target, load, clocks, labels, "stream", stream.notes(streamed)),
    )


def of_serve(
    target: Target, model: Served, served: serve.Served, clocks: tuple[Clocks, ...], labels: dict[str, Any]
) -> Result:
    """Return the result of `bench serve`, marked as a screen wherever it departs from the contract."""
    load = served.load
    whole = serve.totals(served)
    workload = _workload(
        target,
        model,
        load,
        measured="serving",
        requests=load.requests,
        dataset="random",
        cached_prompt=bool(whole.cached_tokens) if whole.cached_tokens is not None else None,
        range_ratio=0.0,
    )
    return Result(
        kind="serve",
        screen=serve.departures(load, whole.cached_tokens),
        contract=Contract(workload=workload, system=environment.system(target.plan)),
        traces=serve.result_traces(served),
        rates=serve.rates(whole),
        totals=whole,
        failures=serve.failures(served),
        **_common(target, load, clocks, labels, "serving", serve.notes(served)),
    )


def rehearsed(target: Target) -> tuple[str, ...]:
    """Return the warning of a result that no V100 gave, because the engine only rehearses; nothing elsewhere."""
    line = target.planned.rehearsal
    return (f"WARNING: {line}",) if line else ()


def tells_cached(target: Target) -> bool:
    """Whether the engine tells how many tokens of a prompt came out of its prefix cache."""
    return bool(target.planned.argument("enable_prompt_tokens_details"))


def _workload(target: Target, served: Served, load: Load, **more: Any) -> Workload:  # noqa: ANN401 - fields of its own
    model = target.planned.model
    repository = None if model is None else model.repository
    return Workload(
        model=environment.family(repository or served.name),
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        concurrency=load.concurrency,
        seed=load.seed,
        request_rate="all_at_once",
        sampling=told(load.sampling),
        speculation=environment.speculation(target.plan),
        **more,
    )


def _common(
    target: Target, load: Load, clocks: tuple[Clocks, ...], labels: dict[str, Any], what: str, notes: tuple[str, ...]
) -> dict[str, Any]:
    profile = target.planned.profile
    title = labels.get("title") or f"{profile or target.url}: {what} {load.name}"
    return {
        "at": datetime.now(UTC).replace(microsecond=0),
        "title": title,
        "environment": environment.environment(target.plan, target.run_dir, labels.get("image"), clocks),
        "notes": (*rehearsed(target), *notes),
    }
