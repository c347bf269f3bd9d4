"""GET /health/startup, /health/live, /health/ready: 200 or 503, always JSON with a reason."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from appliance.health import judge, probe
from appliance.sidecar import answers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

logger = logging.getLogger(__name__)

SUMMARIES = {
    "startup": "200 once the engine has been ready; until then phase, elapsed time and budget",
    "live": "200 while the processes are there and the engine is not stalled beyond its grace",
    "ready": "200 while the model is listed, the plugin proven, the expected routes bound, the engine stepping or idle",
}


def router(run_dir: Path) -> APIRouter:
    """Return the three probes over `run_dir`."""
    routes = APIRouter(prefix="/health", tags=["health"])
    for name, summary in SUMMARIES.items():
        routes.add_api_route(
            f"/{name}",
            _endpoint(name, run_dir),
            summary=summary,
            name=f"health_{name}",
            response_model=answers.Health,
            responses={503: {"model": answers.Health, "description": "The probe fails; the reason says why."}},
        )
    return routes


def _endpoint(name: str, run_dir: Path) -> Callable[[], Awaitable[JSONResponse]]:
    # On the event loop: a few small files of a local folder are read faster than a thread is woken on a busy machine.
    async def endpoint() -> JSONResponse:
        return answer(name, run_dir)

    return endpoint


def answer(name: str, run_dir: Path) -> JSONResponse:
    """Return the answer of the probe `name`. Fails closed: a judge that breaks finds no engine healthy."""
    try:
        return _answer(name, judge.report(run_dir))
    except Exception as error:
        logger.exception("The engine's health cannot be judged")
        reason = f"internal error of the sidecar: {type(error).__name__}; its log tells more"
        return _answer(name, judge.Report("dead", reason, startup_ok=False, live_ok=False, ready_ok=False))


def _answer(name: str, report: judge.Report) -> JSONResponse:
    return JSONResponse(probe.answer(name, report), 200 if report.ok(name) else 503)
