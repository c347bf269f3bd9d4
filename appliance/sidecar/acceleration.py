"""GET /v1/sm70/acceleration: which fast paths are on, and why the others are not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import APIRouter

from appliance.health import rundir
from appliance.sidecar import answers
from appliance.sidecar.records import UNAVAILABLE, Unavailable, read

if TYPE_CHECKING:
    from pathlib import Path


def router(run_dir: Path) -> APIRouter:
    """Return the endpoint over `run_dir`."""
    routes = APIRouter(prefix="/v1/sm70", tags=["acceleration"])

    @routes.get("/acceleration", summary="Every SM70 fast path: on, or why not", responses=UNAVAILABLE)
    async def acceleration() -> answers.Acceleration:
        """The report that the engine last wrote, with its age."""
        return report(run_dir)

    return routes


def report(run_dir: Path) -> answers.Acceleration:
    """Return the report in `run_dir`. Raises Unavailable when there is none."""
    missing = f"the engine has written no {rundir.ACCELERATION} yet"
    try:
        written = (run_dir / rundir.ACCELERATION).stat().st_mtime
    except OSError:
        raise Unavailable(missing) from None
    # Wall clock on both sides: the file's time is in no other.
    age = max(0.0, time.time() - written)
    return read(
        run_dir, rundir.ACCELERATION, lambda record: answers.Acceleration(**record, age_s=round(age, 1)), missing
    )
