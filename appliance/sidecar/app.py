"""The sidecar's HTTP application: what it answers under which path, and what every answer has in common."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from appliance import __version__
from appliance.sidecar import acceleration, cache, health, metadata, metrics, status
from appliance.sidecar.answers import Index
from appliance.sidecar.endpoints import listed
from appliance.sidecar.guard import WriteGuard
from appliance.sidecar.records import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from appliance.sidecar.services import Services

logger = logging.getLogger(__name__)

HEADERS = {
    "cache-control": "no-store",  # a health answer out of a proxy's cache is a lie
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""On every answer that does not set its own."""


def create_app(services: Services) -> FastAPI:
    """Return the application that answers out of `services`; their run directory need not exist yet."""
    app = FastAPI(
        title="V100 appliance sidecar",
        summary="Health, profile, topology, acceleration, compile cache and metrics of one inference engine.",
        description="No answer waits for the engine, for NVML or for a job: threads ask them, and what was known last "
        "is told with its age. Only the compile cache can be changed, with the sidecar's token.",
        version=__version__,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,  # the pages of FastAPI load scripts from a CDN
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    run_dir, token = services.run_dir, services.options.token

    @app.get("/", tags=["index"], summary="Every endpoint", response_model=Index, responses=status.INSTEAD)
    async def index(request: Request) -> Index | Response:
        """Where to look for what; a browser is sent to the status page."""
        if status.is_wanted(request):
            return status.instead()
        return Index(appliance=__version__, openapi=app.openapi_url or "", endpoints=listed(app))

    for part in (
        health.router(run_dir),
        metadata.router(run_dir),
        acceleration.router(run_dir, services.engine),
        cache.router(services.cache, services.jobs, writable=token is not None),
        metrics.router(services),
        status.router(services),
    ):
        app.include_router(part)
    app.add_exception_handler(Unavailable, _unavailable)
    app.add_exception_handler(RequestValidationError, _not_understood)
    for error, code in cache.REFUSALS.items():
        app.add_exception_handler(error, _because(code))
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(WriteGuard, token=token)
    app.add_middleware(CommonHeaders)
    return app


def _because(code: int) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def answer(_request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"reason": str(error)}, code)

    return answer


async def _not_understood(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    parts = (f"{'.'.join(str(step) for step in each['loc'])}: {each['msg']}" for each in error.errors())
    return JSONResponse({"reason": "; ".join(parts)}, 422)


async def _unavailable(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"reason": str(error)}, 503)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "GET")
    reasons = {
        404: f"there is no {request.url.path}; GET / lists every endpoint",
        405: "this endpoint is read-only" if allowed == "GET" else f"this endpoint takes {allowed}",
    }
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
