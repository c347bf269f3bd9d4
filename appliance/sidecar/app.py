"""The sidecar's HTTP application: what it answers under which path, and what every answer has in common."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from appliance import __version__
from appliance.sidecar import acceleration, health, metadata, metrics
from appliance.sidecar.answers import Index
from appliance.sidecar.endpoints import listed
from appliance.sidecar.records import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

HEADERS = {
    "cache-control": "no-store",  # a health answer out of a proxy's cache is a lie
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""On every answer that does not set its own."""


def create_app(run_dir: Path) -> FastAPI:
    """Return the application that answers from the files in `run_dir`, which need not exist yet."""
    app = FastAPI(
        title="V100 appliance sidecar",
        summary="Health, profile, topology, acceleration and metrics of one inference engine. Read-only.",
        description="Every answer comes from the run directory that the engine and its guardian write; none asks the "
        "engine, so that a hung engine cannot hang an answer.",
        version=__version__,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,  # the pages of FastAPI load scripts from a CDN
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )

    @app.get("/", tags=["index"], summary="Every endpoint")
    async def index() -> Index:
        """Where to look for what."""
        return Index(appliance=__version__, openapi=app.openapi_url or "", endpoints=listed(app))

    for part in (health, metadata, acceleration, metrics):
        app.include_router(part.router(run_dir))
    app.add_exception_handler(Unavailable, _unavailable)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(CommonHeaders)
    return app


async def _unavailable(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"reason": str(error)}, 503)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    reasons = {404: f"there is no {request.url.path}; GET / lists every endpoint", 405: "this endpoint is read-only"}
    return JSONResponse(
        {"reason": reasons.get(error.status_code, error.detail)}, error.status_code, dict(error.headers or {})
    )


async def _failed(_request: Request, error: Exception) -> JSONResponse:
    # Sent from outside every middleware.
    return JSONResponse(
        {"reason": f"internal error: {type(error).__name__}; the sidecar's log tells more"}, 500, HEADERS
    )


class CommonHeaders:
    """Adds `HEADERS`, and answers HEAD as GET: load balancers and `wget --spider` probe with it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one connection on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        # The server keeps the real method and leaves the body out.
        await self.app(
            {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send_with_headers
        )
