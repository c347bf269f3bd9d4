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
from appliance.rundir import rank_report
from appliance.rundir.plan import PlanRecord

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from appliance.rundir.rank_report import RankReport

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
            return 200, gathered(report, ranks(self.run_dir), world_size(PlanRecord.read(self.run_dir)))
        except (LookupError, TypeError, AttributeError) as error:
            return 503, {"reason": f"{rundir.ACCELERATION} does not have its form ({type(error).__name__})"}


def path_of(scope: Scope) -> str:
    """Return the path of a request below the server's root path."""
    return str(scope["path"].removeprefix(scope.get("root_path", "")))


def ranks(run_dir: Path) -> dict[int, RankReport]:
    """Return ranks/RANK.json by rank. What a process of an earlier start left does not count: it lives no more."""
    return {rank: report for rank, report in rank_report.read_all(run_dir).items() if _lives(report.pid)}


def world_size(plan: PlanRecord | None) -> int:
    """Return the number of ranks that the plan starts; 1 where it does not say."""
    size = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        value = (plan or PlanRecord()).argument(name)
        size *= value if isinstance(value, int) and 0 < value < 1024 else 1
    return size


def _lives(pid: int | None) -> bool:
    if pid is None or pid <= 0:
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
