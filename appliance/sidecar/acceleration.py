"""GET /v1/sm70/acceleration: which fast paths are on, and why the others are not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from appliance import rundir
from appliance.rundir.acceleration import AccelerationReport
from appliance.sidecar import answers
from appliance.sidecar.records import UNAVAILABLE, Unavailable, read

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.sidecar.engine import Engine, Known

OWN = ("source", "age_s", "stale", "stale_reason")
"""The sidecar's own fields of the answer, which nobody else's report may set."""


def router(run_dir: Path, engine: Engine) -> APIRouter:
    """Return the endpoint over `engine` and `run_dir`."""
    routes = APIRouter(prefix="/v1/sm70", tags=["acceleration"])

    @routes.get("/acceleration", summary="Every SM70 fast path: on, or why not", responses=UNAVAILABLE)
    async def acceleration() -> answers.Acceleration:
        """The engine's own report; the last known one, marked stale, while the engine does not answer."""
        return report(run_dir, await engine.refreshed(), engine.problem())

    return routes


def report(run_dir: Path, known: Known, problem: str | None) -> answers.Acceleration:
    """Return the newest report, of what the engine said and what it wrote. Raises Unavailable when there is none."""
    written = _written(run_dir)
    if known.report is not None and known.at is not None and (problem is None or _is_newest(known, written)):
        return _answer(known.report, "engine", time.monotonic() - known.at, problem)
    missing = f"the engine has written no {rundir.ACCELERATION} yet"
    if written is None:
        raise Unavailable(missing)
    # Wall clock on both sides: the file's time is in no other.
    age = max(0.0, time.time() - written)
    stale = problem or "a later start has not been asked yet"
    return read(run_dir, rundir.ACCELERATION, lambda record: _answer(record, "run directory", age, stale), missing)


def newest(run_dir: Path, known: Known, problem: str | None) -> AccelerationReport | None:
    """Return the newest report for metrics and page, None when there is none."""
    if known.report is not None and (problem is None or _is_newest(known, _written(run_dir))):
        return AccelerationReport.from_json(known.report)
    return AccelerationReport.read(run_dir)


def _is_newest(known: Known, written: float | None) -> bool:
    """Whether no later start has written a report of its own since the engine answered."""
    return written is None or (known.at_wall is not None and written <= known.at_wall)


def _written(run_dir: Path) -> float | None:
    try:
        return (run_dir / rundir.ACCELERATION).stat().st_mtime
    except OSError:
        return None


def _answer(record: dict[str, Any], source: str, age: float, problem: str | None) -> answers.Acceleration:
    told = {name: value for name, value in record.items() if name not in OWN}
    return answers.Acceleration.model_validate(
        {**told, "source": source, "age_s": round(age, 1), "stale": problem is not None, "stale_reason": problem}
    )
