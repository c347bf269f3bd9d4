"""Token-true streams: requests at a fixed concurrency, each token counted by its ID, each failure counted.

Time per token is what lies between a request's first and last chunk, over the tokens that came after the first one.
Chunk intervals are told apart from it: with speculation several tokens share a chunk, and a chunk is no GPU step.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from appliance.bench import prompts, statistics
from appliance.bench.client_request import body, judge, send, warm_up_failures
from appliance.bench.result import Counted, Totals
from appliance.errors import CheckError

if TYPE_CHECKING:
    import aiohttp

    from appliance.bench.client import Served, Target
    from appliance.bench.client_request import Endpoint, Outcome
    from appliance.bench.options import Load
    from appliance.bench.progress import Progress
    from appliance.bench.result import Rate, Trace

Prompts = Literal["ids", "text"]

COALESCED_S = 1e-9
"""Chunks that are no further apart came in one read of the socket."""


@dataclass
class Streamed:
    """Every request's outcome, by repeat, and how long each repeat took in seconds."""

    load: Load
    outcomes: list[list[Outcome]] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    unsent: int = 0
    """Requests of repeats for which no prompts could be made any more, `why` in a line."""
    why: str = ""
    warm_up_failures: Counter[str] = field(default_factory=Counter)

    @property
    def all(self) -> list[Outcome]:
        """The outcomes of all repeats."""
        return [outcome for repeat in self.outcomes for outcome in repeat]

    @property
    def answered(self) -> list[Outcome]:
        """Those that were answered to their end."""
        return [outcome for outcome in self.all if outcome.failure is None]

    @property
    def sound(self) -> bool:
        """Whether none failed."""
        return len(self.answered) == len(self.all) + self.unsent and not self.warm_up_failures


async def measure(
    client: aiohttp.ClientSession,
    target: Target,
    served: Served,
    load: Load,
    progress: Progress,
    *,
    endpoint: Endpoint = "completions",
    kind: Prompts = "ids",
    tokenizer: prompts.Tokenizer | None = None,
) -> Streamed:
    """Send every repeat's requests, `load.concurrency` at a time, and return how they went."""
    tokenizer = tokenizer or prompts.Served(client, target, served.name)
    streamed = Streamed(load)
    known = await prompts.vocabulary(tokenizer) if endpoint == "completions" and kind == "ids" else None
    for repeat in range(1, load.repeats + 1):
        seed = load.seed if load.cached else load.seed + repeat - 1
        asked: list[str] | list[list[int]]
        if known is not None:
            asked = prompts.token_prompts(known, load.input_tokens, load.requests, seed)
        else:
            try:
                with progress.bar(f"prompts of {load.input_tokens} tokens", 1) as bar:
                    asked = await prompts.text_prompts(
                        tokenizer, load.input_tokens, load.requests, seed, chat=endpoint == "chat"
                    )
                    bar.reach(1)
            except CheckError as error:
                if repeat == 1:
                    raise
                # What was measured before the engine went away is kept.
                streamed.unsent, streamed.why = load.requests * (load.repeats - repeat + 1), str(error)
                break
        bodies = [
            body(endpoint, served.name, prompt, load.output_tokens, load.sampling, stream=True) for prompt in asked
        ]
        if load.cached and repeat == 1:
            once = [body(endpoint, served.name, prompt, 1, load.short.sampling, stream=True) for prompt in asked]
            title = "every prompt once, uncounted"
            first = await _all(client, target, endpoint, once, load, progress=progress, title=title)
            streamed.warm_up_failures = warm_up_failures(first)
        title = f"{load.name}, repeat {repeat} of {load.repeats}"
        began = time.perf_counter()
        outcomes = await _all(client, target, endpoint, bodies, load, progress=progress, title=title)
        streamed.durations_s.append(time.perf_counter() - began)
        for outcome in outcomes:
            judge(outcome, load.input_tokens, load.output_tokens)
        streamed.outcomes.append(outcomes)
    return streamed


async def _all(
    client: aiohttp.ClientSession,
    target: Target,
    endpoint: Endpoint,
    bodies: list[dict[str, Any]],
    load: Load,
    *,
    progress: Progress,
    title: str,
) -> list[Outcome]:
    waiting = asyncio.Semaphore(load.concurrency)
    tokens = 0

    async def one(asked: dict[str, Any]) -> Outcome:
        async with waiting:
            return await send(client, target, endpoint, asked, seen)

    def seen(count: int) -> None:
        nonlocal tokens
        tokens += count
        bar.reach(tokens)

    with progress.bar(title, sum(_output(asked) for asked in bodies)) as bar:
        return list(await asyncio.gather(*map(one, bodies)))


def _output(asked: dict[str, Any]) -> int:
    return int(asked.get("max_tokens") or asked["max_completion_tokens"])


def result_traces(streamed: Streamed) -> tuple[Trace, ...]:
    """Return the distributions of each repeat, in milliseconds, over the requests that were answered."""
    found = []
    for label, outcomes in ((str(number), one) for number, one in enumerate(streamed.outcomes, 1)):
        answered = [outcome for outcome in outcomes if outcome.failure is None]
        per_token = [outcome.tpot_s for outcome in answered]
        first = [outcome.ttft_s for outcome in answered]
        found += [
            statistics.trace("tpot_ms", label, [1000 * s for s in per_token if s is not None]),
            statistics.trace("ttft_ms", label, [1000 * s for s in first if s is not None]),
            statistics.trace("chunk_interval_ms", label, [1000 * s for one in answered for s in one.intervals_s]),
            statistics.trace("e2e_ms", label, [1000 * outcome.ended for outcome in answered]),
        ]
    return tuple(found)


def totals(streamed: Streamed, *, tells: bool) -> Totals:
    """Return what went in and came out; tokens of failed requests are in no figure.

    An engine that tells cached tokens says nothing where there are none; `tells` is whether it would.
    """
    answered = streamed.answered
    cached = [outcome.cached_tokens for outcome in answered if outcome.cached_tokens is not None]
    return Totals(
        requests=len(streamed.all) + streamed.unsent,
        completed=len(answered),
        failed=len(streamed.all) + streamed.unsent - len(answered),
        duration_s=sum(streamed.durations_s),
        input_tokens=sum(outcome.prompt_tokens or streamed.load.input_tokens for outcome in answered),
        output_tokens=sum(outcome.tokens for outcome in answered),
        cached_tokens=sum(cached) if cached or tells else None,
    )


def rates(streamed: Streamed) -> dict[Rate, float]:
    """Return what the answered requests got, over the whole time.

    Prefill speed is input over time to first token, and only told where one request ran at a time and nothing of its
    prompt was in the prefix cache.
    """
    whole = totals(streamed, tells=True)
    if not whole.completed:
        return {}
    found: dict[Rate, float] = {
        "output_tokens_per_s": whole.output_tokens / whole.duration_s,
        "input_tokens_per_s": whole.input_tokens / whole.duration_s,
        "total_tokens_per_s": (whole.input_tokens + whole.output_tokens) / whole.duration_s,
        "requests_per_s": whole.completed / whole.duration_s,
    }
    if per_token := [outcome.tpot_s for outcome in streamed.answered if outcome.tpot_s]:
        found["decode_tokens_per_s"] = 1.0 / fmean(per_token)
    first = [outcome.ttft_s for outcome in streamed.answered if outcome.ttft_s]
    if streamed.load.concurrency == 1 and first and not whole.cached_tokens:
        found["prefill_tokens_per_s"] = whole.input_tokens / sum(first)
    return found


def failures(streamed: Streamed) -> tuple[Counted, ...]:
    """Return the failed requests by reason, the commonest first."""
    found = Counter(outcome.failure for outcome in streamed.all if outcome.failure is not None)
    found += streamed.warm_up_failures
    if streamed.unsent:
        found[f"not sent: {streamed.why}"] = streamed.unsent
    return tuple(Counted(reason=reason, count=count, unit="requests") for reason, count in found.most_common())


def cached_prompt(streamed: Streamed, *, tells: bool) -> bool | None:
    """Return whether prompts came out of the prefix cache; None where the engine does not tell."""
    known = [outcome.cached_tokens for outcome in streamed.answered if outcome.cached_tokens is not None]
    return any(known) if known or tells else None


def notes(streamed: Streamed) -> tuple[str, ...]:
    """Return what a reader must know beside the figures, warnings first."""
    load, answered = streamed.load, streamed.answered
    found = []
    if short := [outcome for outcome in answered if outcome.tokens < load.output_tokens]:
        ends = Counter(str(outcome.finish_reason) for outcome in short)
        why = ", ".join(f"{count} ended with {reason}" for reason, count in ends.most_common())
        fewest = min(outcome.tokens for outcome in short)
        found.append(
            f"WARNING: {len(short)} of {len(answered)} answers have fewer than the {load.output_tokens} tokens that "
            f"were asked for, the shortest {fewest} ({why})"
        )
    details = {outcome.failure: outcome.detail for outcome in reversed(streamed.all) if outcome.failure is not None}
    found += [f"WARNING: {reason}: {detail}" for reason, detail in details.items() if detail]
    hits = [outcome.cached_tokens for outcome in answered if outcome.cached_tokens]
    if hits and not load.cached:
        found.append(
            f"WARNING: {sum(hits)} prompt tokens of {len(hits)} requests came out of the prefix cache: an earlier run "
            "had the same --seed; take another for cold prompts"
        )
    one_chunk = sum(outcome.tpot_s is None for outcome in answered)
    if one_chunk:
        found.append(f"{one_chunk} answers came in one chunk and have no time per token")
    sizes = [tokens for outcome in answered for _, tokens in outcome.chunks]
    if sizes:
        found.append(
            f"{fmean(sizes):.2f} tokens a chunk, at most {max(sizes)}: tokens of a chunk share its arrival, so chunk "
            "intervals are neither times per token nor GPU steps"
        )
    gaps = [gap for outcome in answered for gap in outcome.intervals_s]
    if together := sum(gap <= COALESCED_S for gap in gaps):
        found.append(f"{together} of {len(gaps)} chunk intervals are zero: those chunks came in one read of the socket")
    return tuple(found)
