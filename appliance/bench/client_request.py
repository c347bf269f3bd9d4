"""One request to the OpenAI API and everything that is known of it afterwards: arrivals, token counts, how it failed.

A chunk is one event of the stream. Several tokens may come in one chunk and share its arrival; several chunks may come
in one read of the socket and share theirs. Neither is a time of a GPU step.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    import aiohttp

    from appliance.bench.client import Target

Endpoint = Literal["completions", "chat"]

PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}

DISCONNECTED = "the connection ended before the answer did"
SILENT = "no byte came for longer than --timeout"
UNREACHABLE = "the engine could not be reached"
BROKEN = "the stream was no JSON events"
IN_STREAM = "an error in the stream"
NO_IDS = "no token IDs came, so that nothing could be counted"
TOO_MANY = "more tokens came than were asked for"
COUNT_DIFFERS = "the engine's count of output tokens is not that of the token IDs"
PROMPT_DIFFERS = "the engine counted another number of prompt tokens than were sent"


@dataclass
class Outcome:
    """How a request went. Times in seconds since `started`, which is on time.perf_counter().

    `failure` is None for a request that was answered to its end, else one of this module's reasons, or `HTTP 500`.
    """

    started: float
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """Arrival and number of tokens of each chunk that brought tokens."""
    ended: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    told_tokens: int | None = None
    """The engine's own count of output tokens."""
    finish_reason: str | None = None
    failure: str | None = None
    detail: str = ""
    text_chunks: int = 0
    """Chunks with text but without token IDs."""

    @property
    def tokens(self) -> int:
        """Output tokens that were counted by their IDs."""
        return sum(tokens for _, tokens in self.chunks)

    @property
    def ttft_s(self) -> float | None:
        """Until the first chunk with tokens."""
        return self.chunks[0][0] if self.chunks else None

    @property
    def tpot_s(self) -> float | None:
        """Time for each token after the first chunk; None where all came in one."""
        later = self.tokens - self.chunks[0][1] if self.chunks else 0
        return (self.chunks[-1][0] - self.chunks[0][0]) / later if later else None

    @property
    def intervals_s(self) -> list[float]:
        """Between chunks."""
        return [now - before for (before, _), (now, _) in itertools.pairwise(self.chunks)]

    def fail(self, reason: str, detail: str = "") -> None:
        """Keep the first reason."""
        if self.failure is None:
            self.failure, self.detail = reason, " ".join(detail.split())[:300]


def body(
    endpoint: Endpoint,
    model: str,
    prompt: str | list[int],
    output_tokens: int,
    sampling: dict[str, Any],
    *,
    stream: bool,
) -> dict[str, Any]:
    """Return a request's body: vLLM's `return_token_ids` on, `sampling` by the API's names."""
    asked: dict[str, Any] = {"model": model, "stream": stream, "return_token_ids": True, **sampling}
    if endpoint == "chat":
        asked |= {"messages": [{"role": "user", "content": prompt}], "max_completion_tokens": output_tokens}
    else:
        asked |= {"prompt": prompt, "max_tokens": output_tokens}
    if stream:
        asked["stream_options"] = {"include_usage": True}
    return asked


async def send(
    client: aiohttp.ClientSession,
    target: Target,
    endpoint: Endpoint,
    asked: dict[str, Any],
    seen: Callable[[int], None],
) -> Outcome:
    """Send one request and return how it went; never raises for what the engine or the network does.

    `seen` is told the number of tokens of each chunk as it arrives.
    """
    import aiohttp

    outcome = Outcome(time.perf_counter())
    try:
        async with client.post(f"{target.url}{PATHS[endpoint]}", json=asked) as answer:
            if answer.status != 200:
                outcome.fail(f"HTTP {answer.status}", await answer.text(errors="replace"))
            elif asked["stream"]:
                await _follow(answer, outcome, seen)
            else:
                _whole(await answer.json(content_type=None), outcome, seen)
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionResetError) as error:
        outcome.fail(DISCONNECTED, str(error))
    except TimeoutError as error:  # aiohttp's ServerTimeoutError is one
        outcome.fail(SILENT, str(error))
    except aiohttp.ClientConnectorError as error:
        outcome.fail(UNREACHABLE, str(error))
    except aiohttp.ClientError as error:
        outcome.fail(DISCONNECTED, str(error))
    except (ValueError, TypeError, KeyError, AttributeError, LookupError) as error:
        outcome.fail(BROKEN, f"{type(error).__name__}: {error}")
    outcome.ended = time.perf_counter() - outcome.started
    return outcome


async def _follow(answer: aiohttp.ClientResponse, outcome: Outcome, seen: Callable[[int], None]) -> None:
    done = False
    async for arrived, event in _events(answer, outcome.started):
        if event == "[DONE]":
            done = True
            continue
        record = json.loads(event)
        if record.get("error") is not None:
            error = record["error"]
            outcome.fail(IN_STREAM, str(error.get("message", error)) if isinstance(error, dict) else str(error))
            continue
        if record.get("usage"):
            _usage(record["usage"], outcome)
        for choice in record.get("choices") or ():
            _choice(choice, arrived, outcome, seen)
    if not done:
        outcome.fail(DISCONNECTED, "no [DONE] came")


async def _events(answer: aiohttp.ClientResponse, started: float) -> AsyncIterator[tuple[float, str]]:
    """Yield each event's data with the arrival of its last byte. No limit of length: the first holds the prompt."""
    rest = b""
    async for read in answer.content.iter_any():
        arrived = time.perf_counter() - started
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield arrived, line[5:].strip().decode()


def _choice(choice: dict[str, Any], arrived: float, outcome: Outcome, seen: Callable[[int], None]) -> None:
    tokens = len(choice.get("token_ids") or ())
    if tokens:
        outcome.chunks.append((arrived, tokens))
        seen(tokens)
    elif choice.get("text") or (choice.get("delta") or {}).get("content"):
        outcome.text_chunks += 1
    outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason


def _whole(record: dict[str, Any], outcome: Outcome, seen: Callable[[int], None]) -> None:
    _usage(record["usage"], outcome)
    for choice in record["choices"]:
        _choice(choice, time.perf_counter() - outcome.started, outcome, seen)


def _usage(usage: dict[str, Any], outcome: Outcome) -> None:
    outcome.prompt_tokens = int(usage["prompt_tokens"])
    outcome.told_tokens = int(usage.get("completion_tokens") or 0)
    details = usage.get("prompt_tokens_details") or {}
    if details.get("cached_tokens") is not None:
        outcome.cached_tokens = int(details["cached_tokens"])


def warm_up_failures(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Return how many requests failed that were not measured, by reason."""
    return Counter(f"in the warm-up: {outcome.failure}" for outcome in outcomes if outcome.failure is not None)


def judge(outcome: Outcome, input_tokens: int, output_tokens: int) -> None:
    """Fail an answer whose counts are not what they must be. Fewer output tokens than asked are no failure."""
    if outcome.failure is not None:
        return
    if not outcome.tokens:
        outcome.fail(NO_IDS, f"{outcome.text_chunks} chunks of text, finish_reason {outcome.finish_reason}")
    elif outcome.tokens > output_tokens:
        outcome.fail(TOO_MANY, f"{outcome.tokens} instead of {output_tokens}")
    elif outcome.told_tokens is not None and outcome.told_tokens != outcome.tokens:
        outcome.fail(COUNT_DIFFERS, f"{outcome.told_tokens} told, {outcome.tokens} counted")
    elif outcome.prompt_tokens is not None and outcome.prompt_tokens != input_tokens:
        outcome.fail(PROMPT_DIFFERS, f"{outcome.prompt_tokens} counted, {input_tokens} sent")
