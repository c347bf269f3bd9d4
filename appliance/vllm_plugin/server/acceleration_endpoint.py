"""GET /v1/sm70/acceleration on the engine: the report of every rank, read anew from the run directory.

vLLM 0.19.1 has no way to add a route, so it is answered before vLLM sees it; the key was asked for by then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from appliance import paths, rundir
from appliance.acceleration.gather import gathered

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/v1/sm70/acceleration"


class AccelerationEndpoint:
    """Answers GET and HEAD of PATH, refuses other methods there, and passes on everything else."""

    def __init__(self, app: ASGIApp, run_dir: Path | None = None) -> None:
        self.app = app
        self.run_dir = run_dir or paths.run_dir()
        logging.getLogger("uvicorn.access").addFilter(_not_polled)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] != "http" or path_of(scope) != PATH:
            await self.app(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            # Off the loop: the run directory may be on a disk that hangs, and the loop beats for the whole engine.
            status, body = await asyncio.to_thread(self._answer)
            await JSONResponse(body, status)(scope, receive, send)
        else:
            await JSONResponse({"reason": "GET is all there is"}, 405, {"allow": "GET, HEAD"})(scope, receive, send)

    def _answer(self) -> tuple[int, dict[str, Any]]:
        report = rundir.read(self.run_dir, rundir.ACCELERATION)
        if report is None:
            return 503, {"reason": f"the engine has written no readable {rundir.ACCELERATION}"}
        try:
            return 200, gathered(report, ranks(self.run_dir), world_size(rundir.read(self.run_dir, rundir.PLAN)))
        except (LookupError, TypeError, AttributeError) as error:
            return 503, {"reason": f"{rundir.ACCELERATION} does not have its form ({type(error).__name__})"}


def path_of(scope: Scope) -> str:
    """Return the path of a request below the server's root path."""
    return str(scope["path"].removeprefix(scope.get("root_path", "")))


def ranks(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Return ranks/RANK.json by rank. What a process of an earlier start left does not count: it lives no more."""
    found = {}
    for file in (run_dir / rundir.RANKS).glob("*.json"):
        record = rundir.read(file.parent, file.name)
        if file.stem.isdecimal() and record is not None and _lives(record.get("pid")):
            found[int(file.stem)] = record
    return found


def world_size(plan: dict[str, Any] | None) -> int:
    """Return the number of ranks that the plan starts; 1 where it does not say."""
    arguments = (plan or {}).get("arguments")
    size = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        given = arguments.get(name) if isinstance(arguments, dict) else None
        value = given.get("value") if isinstance(given, dict) else None
        size *= value if isinstance(value, int) and 0 < value < 1024 else 1
    return size


def _lives(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _not_polled(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn.access is shown: what the sidecar asks every few seconds is not, unless refused."""
    if not isinstance(record.args, tuple) or len(record.args) < 5:
        return True
    path, status = record.args[2], record.args[4]
    return not (isinstance(path, str) and path.partition("?")[0] == PATH and status == 200)
