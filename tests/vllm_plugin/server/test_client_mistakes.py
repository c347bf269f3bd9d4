"""A client's mistake is answered in a line and raised no further; a fault is raised."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from starlette.types import Receive, Scope, Send

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]  # importing vLLM warns of what it will


def answer(error: Exception, *, begun: bool = False) -> httpx.Response:
    from appliance.vllm_plugin.server.client_mistakes import AnswersMistakes

    async def app(_: Scope, __: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(AnswersMistakes(app)), base_url="http://engine"
        ) as http:
            return await http.post("/v1/completions")

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("the prompt is empty"), "the prompt is empty"),
        (TypeError(), "TypeError"),
        (OverflowError(), "OverflowError"),
    ],
    ids=str,
)
def test_a_mistake_is_answered_and_logged_without_its_words(
    error: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "vllm.appliance.requests"):
        answered = answer(error)
    assert (answered.status_code, answered.json()["error"]["message"]) == (400, message)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vllm.appliance.requests"]
    assert line.startswith(f"POST /v1/completions: 400, {type(error).__name__} in test_client_mistakes.py:")
    assert "prompt" not in line


def test_a_fault_and_what_comes_after_an_answers_begin_are_raised() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        answer(RuntimeError("broken"))
    with pytest.raises(ValueError, match="late"):
        answer(ValueError("late"), begun=True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([b'{"a": 1}'], 200),
        ([b" \n", b'\t{"a": 1}'], 200),
        ([b""], 200),
        ([b"[1]"], 400),
        ([b" ", b'"text"'], 400),
        ([b"\xff"], 400),
    ],
    ids=str,
)
def test_a_body_is_an_object_and_arrives_whole(body: list[bytes], status: int) -> None:
    from appliance.vllm_plugin.server.client_mistakes import AnswersMistakes

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        got, more = b"", True
        while more:
            message = await receive()
            got, more = got + message.get("body", b""), message.get("more_body", False)
        await PlainTextResponse(got)(scope, receive, send)

    async def pieces() -> AsyncIterator[bytes]:
        for each in body:
            yield each

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(AnswersMistakes(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
            return await http.post("/v1/completions", content=pieces(), headers={"content-type": "application/json"})

    answered = asyncio.run(ask())
    assert answered.status_code == status
    if status == 200:
        assert answered.content == b"".join(body)
    else:
        assert answered.json()["error"]["message"].startswith("the body must be a JSON object, and begins with ")


def test_a_mistake_in_a_message_is_answered_and_a_fault_is_raised() -> None:
    from appliance.vllm_plugin.server.client_mistakes import _answering

    async def serve(error: Exception) -> None:
        raise error

    found = asyncio.run(_resolved(_answering(serve)(ValueError("too long"))))
    assert (found.error.code, found.error.type, found.error.message) == (400, "invalid_request_error", "too long")
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(_resolved(_answering(serve)(RuntimeError("broken"))))


async def _resolved(answer: Awaitable[Any]) -> Any:
    return await answer


def test_other_connections_pass() -> None:
    from appliance.vllm_plugin.server.client_mistakes import AnswersMistakes

    seen: list[Any] = []

    async def app(scope: Any, *_: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    asyncio.run(AnswersMistakes(app)({"type": "websocket"}, nothing, nothing))
    assert seen == ["websocket"]
