"""`bench stream` against a server that streams well, badly, or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from appliance.bench import client, client_request, stream
from appliance.bench.client_request import Outcome
from appliance.bench.options import Load
from appliance.bench.progress import Lines, Silent
from tests.bench.bench_openai import MODEL, RefusingServer, Reply, Server, good, running
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = {"temperature": 0.0, "ignore_eos": True}


def load(**changes: Any) -> Load:
    told: dict[str, Any] = {"input_tokens": 20, "output_tokens": 8, "concurrency": 1, "requests": 1, "repeats": 1}
    return Load(**{**told, "seed": 1234, "sampling": GREEDY, "cached": False, **changes})


def streamed(server: Server, of: Load, tmp_path: Path, silence_s: float = LIMIT_S, **options: Any) -> stream.Streamed:
    target = client.Target(server.url, server.key, tmp_path, {})

    async def measure() -> stream.Streamed:
        async with client.session(target, silence_s) as opened:
            served = client.Served(MODEL, None)
            return await stream.measure(opened, target, served, of, Silent(), **options)

    return asyncio.run(measure())


async def in_threes(reply: Reply) -> None:
    await reply.tokens(1)
    await reply.tokens(3)
    await reply.tokens(3)
    await reply.tokens(1, finish="length")
    await reply.end(prompt_tokens_details={"cached_tokens": 16})


def test_tokens_are_counted_by_their_ids_and_chunks_apart(tmp_path: Path) -> None:
    with running(Server(in_threes)) as server:
        found = streamed(server, load(), tmp_path)
    (outcome,) = found.all
    assert outcome.failure is None
    assert outcome.tokens == outcome.told_tokens == 8
    assert [tokens for _, tokens in outcome.chunks] == [1, 3, 3, 1]
    assert len(outcome.intervals_s) == 3
    assert outcome.tpot_s == pytest.approx(sum(outcome.intervals_s) / 7), "seven tokens came after the first chunk"
    assert outcome.ttft_s == outcome.chunks[0][0]
    assert stream.totals(found, tells=False).cached_tokens == 16
    by_metric = {trace.metric: trace.stats for trace in stream.result_traces(found)}
    assert by_metric["tpot_ms"].count == 1  # type: ignore[union-attr]
    assert by_metric["chunk_interval_ms"].count == 3  # type: ignore[union-attr]
    assert any(note.startswith("2.00 tokens a chunk, at most 3") for note in stream.notes(found))


def test_what_is_asked_is_what_the_options_say(tmp_path: Path) -> None:
    sampling = {**GREEDY, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "seed": 7}
    with running(Server(good)) as server:
        found = streamed(server, load(requests=5, concurrency=2, sampling=sampling, repeats=2), tmp_path)
    assert found.sound
    assert server.most_at_once == 2
    assert len(server.bodies) == 10
    for body in server.bodies:
        assert {name: body[name] for name in sampling} == sampling
        assert body["return_token_ids"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert len(body["prompt"]) == 20
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 10, "no prompt is another's, nor an earlier one's"
    whole = stream.totals(found, tells=True)
    assert (whole.requests, whole.completed, whole.input_tokens, whole.output_tokens) == (10, 10, 200, 80)
    assert whole.cached_tokens == 0
    rates = stream.rates(found)
    assert rates["output_tokens_per_s"] == pytest.approx(80 / sum(found.durations_s))
    assert "prefill_tokens_per_s" not in rates, "two ran at a time"


@pytest.mark.parametrize(("endpoint", "kind"), [("chat", "ids"), ("completions", "text")])
def test_texts_have_exactly_the_tokens_that_were_asked_for(tmp_path: Path, endpoint: Any, kind: Any) -> None:
    with running(Server(good)) as server:
        found = streamed(server, load(input_tokens=333, requests=3), tmp_path, endpoint=endpoint, kind=kind)
    assert found.sound, stream.failures(found)
    assert [outcome.prompt_tokens for outcome in found.all] == [333] * 3


def test_cached_prompts_are_sent_once_before(tmp_path: Path) -> None:
    with running(Server(good)) as server:
        found = streamed(server, load(requests=2, repeats=2, cached=True), tmp_path)
    assert len(server.bodies) == 2 + 2 * 2
    assert [body["max_tokens"] for body in server.bodies[:2]] == [1, 1]
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 2
    assert stream.totals(found, tells=False).requests == 4


async def error_in_the_stream(reply: Reply) -> None:
    await reply.tokens(2)
    await reply.event({"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}})
    await reply.event("[DONE]")


async def disconnect(reply: Reply) -> None:
    await reply.tokens(2)
    assert reply.request.transport is not None
    reply.request.transport.abort()


async def no_done(reply: Reply) -> None:
    await reply.tokens(reply.asked, finish="length")
    await reply.event({"choices": [], "usage": reply.usage()})


async def silent(reply: Reply) -> None:
    await reply.tokens(2)
    await asyncio.sleep(LIMIT_S)


async def too_many(reply: Reply) -> None:
    await reply.tokens(reply.asked + 1, finish="length")
    await reply.end()


async def counts_wrong(reply: Reply) -> None:
    await reply.tokens(reply.asked, finish="length")
    await reply.end(completion_tokens=reply.asked - 1)


async def other_prompt(reply: Reply) -> None:
    await reply.tokens(reply.asked, finish="length")
    await reply.end(prompt_tokens=reply.prompt_tokens + 1)


async def no_ids(reply: Reply) -> None:
    await reply.tokens(reply.asked, finish="length", ids=False)
    await reply.end()


async def no_json(reply: Reply) -> None:
    await reply.event("{broken")


async def nonsense(reply: Reply) -> None:
    await reply.event({"choices": [["not", "a", "choice"]]})


BAD = {
    error_in_the_stream: client_request.IN_STREAM,
    disconnect: client_request.DISCONNECTED,
    no_done: client_request.DISCONNECTED,
    silent: client_request.SILENT,
    too_many: client_request.TOO_MANY,
    counts_wrong: client_request.COUNT_DIFFERS,
    other_prompt: client_request.PROMPT_DIFFERS,
    no_ids: client_request.NO_IDS,
    no_json: client_request.BROKEN,
    nonsense: client_request.BROKEN,
}


@pytest.mark.parametrize("behave", BAD, ids=lambda behave: behave.__name__)
def test_a_bad_answer_is_a_failure_with_its_reason(tmp_path: Path, behave: Any) -> None:
    with running(Server(behave)) as server:
        found = streamed(server, load(), tmp_path, silence_s=3.0 if behave is silent else LIMIT_S)
    assert [(one.reason, one.count) for one in stream.failures(found)] == [(BAD[behave], 1)]
    assert not found.sound
    assert stream.rates(found) == {}


def test_failures_are_counted_beside_what_was_answered(tmp_path: Path) -> None:
    behaviours = [good, *BAD]

    async def each_its_own(reply: Reply) -> None:
        await behaviours[reply.number - 1](reply)

    many = len(behaviours)
    with running(Server(each_its_own)) as server:
        found = streamed(server, load(requests=many, concurrency=1), tmp_path, silence_s=3.0)
    whole = stream.totals(found, tells=False)
    assert (whole.requests, whole.completed, whole.failed) == (many, 1, many - 1)
    assert whole.output_tokens == 8, "tokens of failed requests are in no figure"
    assert sum(one.count for one in stream.failures(found)) == many - 1
    assert all(trace.stats is None or trace.stats.count in (1, 7) for trace in stream.result_traces(found))
    assert any("EngineCore died" in note for note in stream.notes(found))


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_warm_up_asks_for_one_token_and_for_no_least_number(tmp_path: Path, endpoint: Any) -> None:
    with running(Server(good)) as server:
        sampling = {**GREEDY, "min_tokens": 4}
        found = streamed(server, load(input_tokens=40, cached=True, sampling=sampling), tmp_path, endpoint=endpoint)
    first, second = server.bodies
    most = "max_completion_tokens" if endpoint == "chat" else "max_tokens"
    assert (first[most], first.get("min_tokens")) == (1, None)
    assert (second[most], second["min_tokens"]) == (8, 4)
    assert found.sound


def test_a_prompt_that_failed_before_it_was_measured_is_counted(tmp_path: Path) -> None:
    async def cold(reply: Reply) -> None:
        if reply.number == 1:
            await reply.event({"error": {"message": "cold"}})
        await good(reply)

    with running(Server(cold)) as server:
        found = streamed(server, load(requests=2, cached=True), tmp_path)
    (only,) = stream.failures(found)
    assert (only.reason, only.count) == (f"in the warm-up: {client_request.IN_STREAM}", 1)
    assert stream.totals(found, tells=False).completed == 2
    assert not found.sound


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_status_is_the_reason(tmp_path: Path, status: int) -> None:
    with running(RefusingServer(status, "the reason in words")) as server:
        found = streamed(server, load(requests=2), tmp_path)
    assert [(one.reason, one.count) for one in stream.failures(found)] == [(f"HTTP {status}", 2)]
    assert any("the reason in words" in note for note in stream.notes(found))


def test_fewer_tokens_than_asked_are_no_failure_but_a_warning(tmp_path: Path) -> None:
    async def early(reply: Reply) -> None:
        for left in range(4, -1, -1):
            await reply.tokens(1, finish=None if left else "stop")
        await reply.end()

    with running(Server(early)) as server:
        found = streamed(server, load(requests=2), tmp_path)
    assert found.sound
    (warning,) = (note for note in stream.notes(found) if "WARNING" in note)
    assert "2 of 2 answers have fewer than the 8 tokens" in warning
    assert "the shortest 5 (2 ended with stop)" in warning


def test_hits_that_nobody_wanted_are_warned_of(tmp_path: Path) -> None:
    with running(Server(in_threes)) as server:
        found = streamed(server, load(), tmp_path)
    assert any("WARNING: 16 prompt tokens of 1 requests came out of the prefix cache" in n for n in stream.notes(found))
    assert stream.cached_prompt(found, tells=True) is True


def test_chunks_of_one_read_share_their_arrival() -> None:
    outcome = Outcome(0.0, chunks=[(0.1, 1), (0.2, 1), (0.2, 1), (0.3, 1)], ended=0.3)
    found = stream.Streamed(load(output_tokens=4), [[outcome]], [0.3])
    assert any(note.startswith("1 of 3 chunk intervals are zero") for note in stream.notes(found))
    assert outcome.tpot_s == pytest.approx(0.2 / 3)


def test_an_answer_in_one_chunk_has_no_time_per_token() -> None:
    outcome = Outcome(0.0, chunks=[(0.1, 8)], ended=0.1)
    found = stream.Streamed(load(), [[outcome]], [0.1])
    assert outcome.tpot_s is None
    assert any("1 answers came in one chunk" in note for note in stream.notes(found))
    assert {trace.metric: trace.stats for trace in stream.result_traces(found)}["tpot_ms"] is None


def test_a_long_first_event_is_read_whole(tmp_path: Path) -> None:
    async def with_prompt(reply: Reply) -> None:
        await reply.event({"choices": [{"text": "", "token_ids": [7], "prompt_token_ids": [0] * 262_144}]})
        await reply.event({"choices": [], "usage": reply.usage(completion_tokens=1)})
        await reply.event("[DONE]")

    with running(Server(with_prompt)) as server:
        found = streamed(server, load(input_tokens=262_000, output_tokens=1), tmp_path)
    assert found.sound, stream.failures(found)


@pytest.mark.parametrize("kind", ["ids", "text"])
def test_what_was_measured_before_the_engine_went_away_is_kept(tmp_path: Path, kind: Any) -> None:
    class Dying(Server):
        async def _tokenize(self, request: web.Request) -> web.Response:
            return web.Response(status=500) if self.bodies else await super()._tokenize(request)

    async def once(reply: Reply) -> None:
        await (good if reply.number <= 2 else disconnect)(reply)

    with running(Dying(once)) as server:
        found = streamed(server, load(requests=2, repeats=3), tmp_path, kind=kind)
    whole = stream.totals(found, tells=False)
    assert (whole.requests, whole.completed, whole.failed) == (6, 2, 4)
    assert not found.sound
    (failed,) = stream.failures(found)
    assert failed.count == 4
    assert failed.reason == client_request.DISCONNECTED if kind == "ids" else failed.reason.startswith("not sent: ")


def test_progress_tells_the_time_that_is_left() -> None:
    lines: list[str] = []
    now = 0.0
    with Lines(lines.append, lambda: now).bar("work", 100) as bar:
        for done in (10, 40, 30, 100):
            now += 10
            bar.reach(done)
    assert lines == [
        "work: started",
        "work: 10 %, 90 s left",
        "work: 40 %, 30 s left",
        "work: 40 %, 45 s left",
        "work: 100 %, 0 s left",
        "work: ended after 40 s",
    ]
