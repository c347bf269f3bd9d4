"""A run directory as a ready engine leaves it, for timing and testing what reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance import paths, rundir
from appliance.acceleration import report, routes
from appliance.launch.request import Request
from appliance.launch.resolve import resolve
from appliance.rundir.heartbeat import Heartbeat
from appliance.rundir.phase import Phase
from appliance.topology import recorded

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = "4xv100-sxm2-16gb"


def write_ready(folder: Path) -> None:
    """Write all records as of now: an engine that has been ready for an hour and works on three requests."""
    for name, record in ready(rundir.clock()).items():
        rundir.write(folder, name, record)


_PLANS: dict[frozenset[str], dict[str, Any]] = {}
"""By the operators that the build lacks, since they decide which profile is chosen."""


def plan() -> dict[str, Any]:
    """Return the plan that the recorded `MACHINE` gets when nobody sets anything."""
    if routes.NOT_BUILT not in _PLANS:
        machine = recorded.load(paths.TOPOLOGIES / f"{MACHINE}.json")
        _PLANS[routes.NOT_BUILT] = resolve(Request({}, (), {}, machine, paths.ROOT)).to_json()
    return _PLANS[routes.NOT_BUILT]


def ready(now: float) -> dict[str, dict[str, Any]]:
    """Return the records by file name; `now` is on rundir.clock()."""
    states = {name: report.RouteState("enabled") for name in routes.ROUTES}
    return {
        rundir.PLAN: plan(),
        rundir.ACCELERATION: report.report(plan()["profile"], plan()["expected_acceleration"], states),
        rundir.PHASE: Phase(
            phase="ready",
            at=now,
            since=now - 3600,
            started=now - 3700,
            budget_s=900,
            stall_grace_s=120,
            pid=1,
            restarts=0,
            models=(plan()["served_model_name"],),
            plugins={"api": True, "core": True},
        ).to_json(),
        rundir.HEARTBEAT: Heartbeat(
            at=now,
            pid=1,
            step_count=52_000,
            step_at=now,
            running=2,
            waiting=1,
            in_flight=3,
            sockets=0,
            awaiting=1,
            oldest_awaiting_at=now - 1,
            busy_since=now - 1,
            kv_usage=0.25,
            finished=900,
            prompt_tokens=1_200_000,
            generation_tokens=340_000,
            steps_record="on",
        ).to_json(),
    }
