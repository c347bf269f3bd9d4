"""ASGI middleware that answers a client's mistake, where vLLM 0.19.1 answers and raises it again.

Its handler for what no other handler takes stands outside of all middleware: uvicorn then writes some ninety lines of
traceback for each refused request, with the client's words in them, and closes the connection.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from vllm.entrypoints.utils import create_error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            await self.app(scope, receive, sent)
        except Exception as error:
            found = create_error_response(error)
            if begun or found.error.code >= FROM_SERVER:
                raise
            found.error.message = found.error.message or type(error).__name__
            last = traceback.extract_tb(error.__traceback__)[-1]
            # Where it was found, and not its words, which may be the client's.
            where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            logger.info(
                "%s %s: %d, %s in %s", scope["method"], scope["path"], found.error.code, type(error).__name__, where
            )
            await JSONResponse(found.model_dump(), found.error.code)(scope, receive, send)
