"""ASGI middleware that answers a client's mistake, where vLLM 0.19.1 raises it again or takes it for a fault.

Its handler for what no other handler takes stands outside of all middleware: uvicorn then writes some ninety lines of
traceback for each refused request, with the client's words in them, and closes the connection. A body that is no object
gets as far as code that reads it as one, and `/v1/messages` answers every mistake with 500.
"""

from __future__ import annotations

import functools
import logging
import traceback
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from vllm.entrypoints.utils import create_error_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from vllm.entrypoints.openai.engine.protocol import ErrorResponse

FROM_SERVER = 500

logger = logging.getLogger("vllm.appliance.requests")


class AnswersMistakes:
    """What vLLM takes for a mistake of the client is answered here; what is a fault goes on to vLLM's handler."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Raises what is no mistake of the client, or comes after an answer has begun."""
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, await _with_object(scope, receive), sent)
        except Exception as error:
            found = answer_to(error, f"{scope['method']} {scope['path']}")
            if begun or found is None:
                raise
            await JSONResponse(found.model_dump(), found.error.code)(scope, receive, send)


def answer_to(error: Exception, asked: str) -> ErrorResponse | None:
    """Return what to answer to a mistake of the client, and log it in a line; None for a fault."""
    found = create_error_response(error)
    if found.error.code >= FROM_SERVER:
        return None
    found.error.message = found.error.message or type(error).__name__
    last = traceback.extract_tb(error.__traceback__)[-1]
    # Where it was found, and not its words, which may be the client's.
    where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    logger.info("%s: %d, %s in %s", asked, found.error.code, type(error).__name__, where)
    return found


async def _with_object(scope: Scope, receive: Receive) -> Receive:
    """Return what gives the body as `receive` does. Raises ValueError where it is JSON and no object."""
    if scope["method"] != "POST" or "json" not in Headers(scope=scope).get("content-type", "json"):
        return receive
    held: list[Message] = []
    begin = b""
    while not begin and (not held or held[-1].get("more_body")):
        held.append(await receive())
        begin = held[-1].get("body", b"").lstrip(b" \t\r\n")
    if begin and not begin.startswith(b"{"):
        raise ValueError(f"the body must be a JSON object, and begins with {begin[:1].decode('ascii', 'replace')!r}")

    async def received() -> Message:
        return held.pop(0) if held else await receive()

    return received


def install() -> None:
    """Let `/v1/messages` answer mistakes as its API does: vLLM 0.19.1 makes 500 of each, upon which clients retry."""
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    for name in ("create_messages", "count_tokens"):
        setattr(AnthropicServingMessages, name, _answering(getattr(AnthropicServingMessages, name)))


def _answering(serve: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(serve)
    async def answered(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - vLLM's own
        try:
            return await serve(*arguments, **named)
        except Exception as error:
            found = answer_to(error, serve.__name__)
            if found is None:
                raise
            found.error.type = "invalid_request_error"
            return found

    return answered
