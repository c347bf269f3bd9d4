"""ASGI middleware that asks for the API key on every path. vLLM 0.19.1's own asks below /v1 alone.

Without it /invocations, /tokenize or /inference/v1/generate would put work into a guarded engine for anybody.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from vllm.entrypoints.openai.server_utils import AuthenticationMiddleware

from appliance.vllm_plugin.server import api_key
from appliance.vllm_plugin.server.acceleration_endpoint import PATH, path_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = frozenset({"/health", "/ping", "/version", "/metrics", "/load"})
"""What orchestrators and scrapers read without a key: no work, no text of anybody's request."""


class KeyOnEveryPath:
    """Does nothing where no key is set; compares as vLLM does, in constant time."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        key = api_key.held(os.environ)
        self.guard = AuthenticationMiddleware(app, [key]) if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if self.guard is None or self._open(scope) or self.guard.verify_token(Headers(scope=scope)):
            await self.app(scope, receive, send)
        else:
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)

    @staticmethod
    def _open(scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            return True
        path = path_of(scope)
        # Below /v1 vLLM asks itself, but our own endpoint there never reaches it.
        return path in OPEN or path == "/v1" or (path.startswith("/v1/") and path != PATH)
