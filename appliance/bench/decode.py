"""Stable decode steps of a running engine: so many requests at once, and of the step record what was pure decode."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from appliance import rundir
from appliance.bench import prompts, statistics, traces
from appliance.bench.client_request import body, judge, send, warm_up_failures
from appliance.bench.result import Counted
from appliance.errors import CheckError, ConfigurationError
from appliance.rundir.heartbeat import Heartbeat

if TYPE_CHECKING:
    import aiohttp

    from appliance.bench.client import Served, Target
    from appliance.bench.client_request import Outcome
    from appliance.bench.options import Load
    from appliance.bench.progress import Bar, Progress
    from appliance.bench.result import Trace
    from appliance.bench.traces import DecodeTrace

WARM_UP_TOKENS = 8
"""Output of the round that is not measured: it warms the shapes up and, with prefix caching, the prompts."""

SETTLE_S = 10.0
"""How long a step may take to reach the record: the engine writes it twice a second."""

FEW = 100
"""Samples below which a 99th percentile is only the slowest of them."""

MISSING_TOKENS = "tokens that were answered and are not in the record"
FOREIGN_TOKENS = "tokens in the record that this benchmark did not ask for: other requests ran"


@dataclass
class Decoded:
    """Every repeat's stable steps, and what else happened."""

    found: list[DecodeTrace] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    foreign_tokens: int = 0
    missing_tokens: int = 0
    short: int = 0
    answered: int = 0
    lost_steps: int = 0
    cached_requests: int = 0
    """Those whose prompt, or a part of it, came out of the prefix cache."""

    @property
    def sound(self) -> bool:
        """Whether every request was answered, nobody else's ran beside them, and the record has all that they got."""
        return not self.failures and not self.foreign_tokens and not self.missing_tokens


def check(load: Load, target: Target) -> None:
    """Raise ConfigurationError where the engine can never hold the full batch."""
    most = target.planned.argument("max_num_seqs")
    if isinstance(most, int) and load.concurrency > most:
        raise ConfigurationError(
            f"--concurrency {load.concurrency} is more than the engine's max_num_seqs of {most}, so that no step holds "
            "them all; ask for fewer, or serve with a larger max_num_seqs"
        )


async def measure(
    client: aiohttp.ClientSession,
    target: Target,
    served: Served,
    load: Load,
    warm_up: int,
    progress: Progress,
    *,
    eager: bool,
    tokenizer: prompts.Tokenizer | None = None,
) -> Decoded:
    """Run a round that is not measured, then every repeat. Raises CheckError where the engine keeps no step record."""
    beat = Heartbeat.read(target.run_dir) or Heartbeat()
    if beat.steps_record not in (None, "on"):
        raise CheckError(f"the engine keeps no step record: {beat.steps_record}; serve without that --scheduler-cls")
    tokenizer = tokenizer or prompts.Served(client, target, served.name)
    known = await prompts.vocabulary(tokenizer)
    asked = prompts.token_prompts(known, load.input_tokens, load.concurrency, load.seed)
    decoded = Decoded()
    with progress.bar(f"warm-up, {load.name}", 1) as bar:
        first = await _round(client, target, served, load.short, asked, min(WARM_UP_TOKENS, load.output_tokens))
        decoded.failures += warm_up_failures(first)
        decoded.details |= {f"in the warm-up: {one.failure}": one.detail for one in first if one.failure is not None}
        bar.reach(1)
    for repeat in range(1, load.repeats + 1):
        if not load.cached:
            asked = prompts.token_prompts(known, load.input_tokens, load.concurrency, load.seed + repeat)
        since = rundir.clock()
        with progress.bar(
            f"{load.name}, repeat {repeat} of {load.repeats}", load.concurrency * load.output_tokens
        ) as bar:
            watching = asyncio.create_task(_watch(target, bar))
            try:
                outcomes = await _round(client, target, served, load, asked, load.output_tokens)
            finally:
                watching.cancel()
        _note(outcomes, load, decoded)
        record = await _recorded(target, since, sum(outcome.tokens for outcome in outcomes))
        decoded.lost_steps += record.lost
        if not record.lost and all(outcome.failure is None for outcome in outcomes):
            beyond = record.generated - sum(outcome.tokens for outcome in outcomes)
            decoded.foreign_tokens += max(0, beyond)
            decoded.missing_tokens += max(0, -beyond)
        decoded.found.append(traces.stable(record.steps, load.concurrency, warm_up, eager=eager))
    return decoded


async def _round(
    client: aiohttp.ClientSession, target: Target, served: Served, load: Load, asked: list[list[int]], tokens: int
) -> list[Outcome]:
    # Not streamed: the engine's steps are what is measured, and a stream of events would only load the machine.
    bodies = [body("completions", served.name, prompt, tokens, load.sampling, stream=False) for prompt in asked]
    outcomes = await asyncio.gather(*(send(client, target, "completions", one, lambda _: None) for one in bodies))
    for outcome in outcomes:
        judge(outcome, load.input_tokens, tokens)
    return list(outcomes)


def _note(outcomes: list[Outcome], load: Load, decoded: Decoded) -> None:
    for outcome in outcomes:
        if outcome.failure is not None:
            decoded.failures[outcome.failure] += 1
            decoded.details.setdefault(outcome.failure, outcome.detail)
        else:
            decoded.answered += 1
            decoded.short += outcome.tokens < load.output_tokens
    decoded.cached_requests += sum(outcome.failure is None and bool(outcome.cached_tokens) for outcome in outcomes)


async def _watch(target: Target, bar: Bar) -> None:
    first = (Heartbeat.read(target.run_dir) or Heartbeat()).generation_tokens or 0
    while True:
        await asyncio.sleep(1.0)
        tokens = (Heartbeat.read(target.run_dir) or Heartbeat()).generation_tokens
        bar.reach(0 if tokens is None else tokens - first)


async def _recorded(target: Target, since: float, tokens: int) -> traces.Record:
    """Return the record since `since`, once it holds `tokens` tokens and the engine is idle, or no more comes."""
    end = rundir.clock() + SETTLE_S
    while True:
        record = await asyncio.to_thread(traces.read, target.run_dir, since)
        if (record.generated >= tokens and record.idle) or rundir.clock() > end:
            if tokens and not record.steps:
                raise CheckError(
                    f"{target.run_dir} recorded no step while {target.url} answered: it is not that engine's run "
                    "directory; name the right one with --run-dir"
                )
            return record
        await asyncio.sleep(0.25)


def result_traces(decoded: Decoded) -> tuple[Trace, ...]:
    """Return a trace for each repeat. Raises CheckError where no step of any was stable, with what they were."""
    if not any(one.intervals_ms for one in decoded.found):
        if decoded.failures:
            failed = "; ".join(f"{n} {reason} ({decoded.details[reason]})" for reason, n in decoded.failures.items())
            raise CheckError(f"no stable decode step was recorded, since requests failed: {failed}")
        left_out = traces.exclusions(decoded.found)
        why = "; ".join(f"{one.count} {one.unit}: {one.reason}" for one in left_out) or "no step at all"
        eager = any(one.reason == traces.EAGER for one in left_out)
        todo = "--eager counts steps without a graph" if eager else "give more --output-len or fewer --concurrency"
        raise CheckError(f"no stable decode step was recorded ({why}); {todo}")
    return tuple(
        statistics.trace("decode_step_ms", str(number), one.intervals_ms) for number, one in enumerate(decoded.found, 1)
    )


def tokens_per_s(decoded: Decoded) -> float:
    """Return the tokens a second of all stable steps together; prefill and waiting are not in it."""
    total_ms = sum(sum(one.intervals_ms) for one in decoded.found)
    return 1000.0 * sum(sum(one.generated) for one in decoded.found) / total_ms


def acceptance(decoded: Decoded, concurrency: int) -> float:
    """Return the tokens that a request got in each stable step."""
    steps = sum(len(one.generated) for one in decoded.found)
    return sum(sum(one.generated) for one in decoded.found) / (steps * concurrency)


def failures(decoded: Decoded) -> tuple[Counted, ...]:
    """Return what went wrong, by reason."""
    found = [Counted(reason=reason, count=count, unit="requests") for reason, count in decoded.failures.most_common()]
    if decoded.foreign_tokens:
        found.append(Counted(reason=FOREIGN_TOKENS, count=decoded.foreign_tokens, unit="tokens"))
    if decoded.missing_tokens:
        found.append(Counted(reason=MISSING_TOKENS, count=decoded.missing_tokens, unit="tokens"))
    return tuple(found)


def notes(decoded: Decoded, target: Target, load: Load) -> tuple[str, ...]:
    """Return what a reader must know beside the figures."""
    found = ["only stable decode steps are in the figures: no prefill, no time to first token, no wall time"]
    modes: Counter[str] = Counter()
    for one in decoded.found:
        modes.update(one.graphs)
    steps = sum(len(one.intervals_ms) for one in decoded.found)
    if modes:
        found.append("graph replay, as vLLM told it: " + ", ".join(f"{n} steps {mode}" for mode, n in modes.items()))
    elif target.planned.argument("enforce_eager"):
        found.append("this engine runs eagerly: there is no CUDA graph to replay")
    else:
        found.append("the record does not tell which steps were graph replays; `-- --cudagraph-metrics` has it told")
    if steps < FEW:
        found.append(f"only {steps} stable steps: the 99th percentile is hardly more than the slowest of them")
    if empty := [number for number, one in enumerate(decoded.found, 1) if not one.intervals_ms]:
        found.append(f"no stable step in repeat {', '.join(map(str, empty))}")
    if decoded.short:
        found.append(
            f"{decoded.short} requests got fewer than {load.output_tokens} tokens, so that their batch ended early"
        )
    if decoded.lost_steps:
        found.append(f"{decoded.lost_steps} steps are missing from the record: it could not be written")
    means = [fmean(one.intervals_ms) for one in decoded.found if one.intervals_ms]
    if (apart := statistics.spread(means)) is not None:
        found.append(f"the repeats' means lie {100 * apart:.2f}% apart")
    return tuple(found)
