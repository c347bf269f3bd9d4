"""A run directory as a ready engine leaves it, for timing and testing what reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.acceleration import report
from appliance.acceleration.routes import ROUTES
from appliance.health import rundir

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = tuple(name for name, route in ROUTES.items() if not route.optional)


def write_ready(folder: Path) -> None:
    """Write all records as of now: an engine that has been ready for an hour and works on three requests."""
    for name, record in ready(rundir.clock()).items():
        rundir.write(folder, name, record)


def ready(now: float) -> dict[str, dict[str, Any]]:
    """Return the records by file name; `now` is on rundir.clock()."""
    states = {name: report.RouteState("enabled") for name in ROUTES}
    return {
        rundir.PLAN: {"schema": 1, "profile": "bench", "expected_acceleration": EXPECTED},
        rundir.ACCELERATION: report.report("bench", EXPECTED, states),
        rundir.PHASE: {
            "phase": "ready",
            "at": now,
            "since": now - 3600,
            "started": now - 3700,
            "budget_s": 900,
            "stall_grace_s": 120,
            "reason": None,
            "progress": None,
            "pid": 1,
            "restarts": 0,
            "models": ["bench"],
            "plugins": {"api": True, "core": True},
            "stopped": [],
        },
        rundir.HEARTBEAT: {
            "at": now,
            "pid": 1,
            "step": 52_000,
            "step_at": now,
            "running": 2,
            "waiting": 1,
            "in_flight": 3,
            "sockets": 0,
            "awaiting": 1,
            "oldest_awaiting_at": now - 1,
            "busy_since": now - 1,
            "kv_usage": 0.25,
            "finished": 900,
            "prompt_tokens": 1_200_000,
            "generation_tokens": 340_000,
            "steps_record": "on",
        },
    }
