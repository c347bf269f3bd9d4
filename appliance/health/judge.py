"""One judgement of the engine's health, out of what the run directory says. Pure, and standard library only.

starting, loading, warming   on the way, within the budget or past it
ready                        serving: idle, working or saturated
degraded                     up, but not as the plan wants it: `ready` fails, `live` does not
stalled                      work to do and no step for longer than the grace: `live` fails
draining                     running requests finish, new ones are refused
dead                         no engine, or nobody who watches over it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance import rundir
from appliance.rundir import plugin_proof
from appliance.rundir.acceleration import AccelerationReport
from appliance.rundir.heartbeat import Heartbeat
from appliance.rundir.phase import ON_THE_WAY, Phase
from appliance.rundir.plan import PlanRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from appliance.rundir.phase import StoppedProcess

BEAT_FRESH_S = 10.0
"""The engine's event loop beats once a second; ten missed beats are no hiccup."""

GUARDIAN_FRESH_S = 15.0
"""The guardian writes phase.json once a second."""

CLOCK_SLACK_S = 1.0
"""A record from further in the future was written before this host was restarted: its clock began anew."""

STALL_GRACE_S = 120.0
"""What operators of hung engines settled on, used when phase.json names no grace of its own."""

START_ONLY = frozenset({"compile_cache"})
"""Routes that make a start shorter and change nothing that is served: one that is off is told, and is no fault."""


Details = dict[str, Any]
"""What a judgement rests on, as the probes answer it."""


@dataclass(frozen=True)
class Report:
    """What all probes answer. `elapsed_s` is how long the start has taken so far, or took."""

    phase: str
    reason: str
    startup_ok: bool
    live_ok: bool
    ready_ok: bool
    elapsed_s: float | None = None
    budget_s: float | None = None
    details: Details = field(default_factory=dict)

    def ok(self, probe: str) -> bool:
        """Whether `probe`, one of startup, live and ready, passes."""
        return {"startup": self.startup_ok, "live": self.live_ok, "ready": self.ready_ok}[probe]

    def to_json(self) -> dict[str, Any]:
        """The form in which the sidecar and `appliance probe --json` give it."""
        return {
            "phase": self.phase,
            "reason": self.reason,
            "startup": self.startup_ok,
            "live": self.live_ok,
            "ready": self.ready_ok,
            "elapsed_s": None if self.elapsed_s is None else round(self.elapsed_s, 1),
            "budget_s": self.budget_s,
            "details": self.details,
        }


def report(run_dir: Path, now: float | None = None) -> Report:
    """Judge what stands in `run_dir` at `now` (on rundir.clock()). Missing and corrupt files are part of the answer."""
    return judge(
        Phase.read(run_dir),
        Heartbeat.read(run_dir),
        AccelerationReport.read(run_dir),
        PlanRecord.read(run_dir),
        rundir.clock() if now is None else now,
        plugin_errors=plugin_proof.errors(run_dir),
    )


def judge(
    phase: Phase | None,
    heartbeat: Heartbeat | None,
    acceleration: AccelerationReport | None,
    plan: PlanRecord | None,
    now: float,
    plugin_errors: Sequence[str] = (),
) -> Report:
    """Return the report for these records of the run directory; None stands for one that is missing or unreadable."""
    if phase is None:
        return _dead("phase.json is missing or unreadable: the appliance does not run on this run directory")
    if phase.at is None or not _fresh(now - phase.at, GUARDIAN_FRESH_S):
        age = "at no known time" if phase.at is None else _ago(now - phase.at)
        return _dead(f"the guardian last wrote phase.json {age}; it does so every second while it lives")
    name = str(phase.phase)
    if name == "dead":
        return _dead(phase.reason or "the engine has ended", phase)
    if name in ON_THE_WAY:
        return _on_the_way(name, phase, now)
    if name == "draining":
        count = (heartbeat or Heartbeat()).in_flight or 0
        reason = phase.reason or f"{_requests(count)} in flight, new ones are refused"
        return Report(name, f"draining: {reason}", True, True, False, details=_process_details(phase))
    if name == "ready":
        return _serving(phase, heartbeat, acceleration, plan, now, plugin_errors)
    return _dead(f'phase.json names the unknown phase "{name}"', phase)


def _dead(reason: str, phase: Phase | None = None) -> Report:
    return Report("dead", reason, False, False, False, details={} if phase is None else _process_details(phase))


def _on_the_way(name: str, phase: Phase, now: float) -> Report:
    budget = phase.budget_s
    elapsed = None if phase.started is None else now - phase.started
    late = elapsed is not None and budget is not None and elapsed > budget
    text = f"{name} for {_seconds(elapsed)}" if elapsed is not None else name
    if budget is not None:
        text += f", which is past the budget of {_seconds(budget)}" if late else f" of at most {_seconds(budget)}"
    note = phase.reason or phase.progress
    reason = f"{text}: {note}" if note else text
    return Report(name, reason, False, not late, False, elapsed, budget, _process_details(phase))


def _serving(
    phase: Phase,
    heartbeat: Heartbeat | None,
    acceleration: AccelerationReport | None,
    plan: PlanRecord | None,
    now: float,
    plugin_errors: Sequence[str],
) -> Report:
    budget = phase.budget_s
    elapsed = None if phase.started is None or phase.since is None else phase.since - phase.started
    grace = phase.stall_grace_s or STALL_GRACE_S
    routes_off, overridden = _routes_off(acceleration, plan)
    details = _process_details(phase) | _work_details(heartbeat, now) | {"grace_s": grace, "routes_off": routes_off}
    if overridden:
        details["routes_overridden"] = overridden

    stalled = _stalled(phase, heartbeat, now, grace)
    if stalled:
        return Report("stalled", stalled, True, False, False, elapsed, budget, details)
    faults = [
        *_stopped(phase),
        *_silent(heartbeat, now),
        *_unlisted(phase),
        *_unproven(phase, plugin_errors),
        *_routes_missing(acceleration, plan, _faulty(acceleration, routes_off)),
    ]
    if faults:
        return Report("degraded", "; ".join(faults), True, True, False, elapsed, budget, details)
    return Report("ready", _working(details), True, True, True, elapsed, budget, details)


def _stalled(phase: Phase, heartbeat: Heartbeat | None, now: float, grace: float) -> str | None:
    """Why the engine counts as stalled, or None. Idle and saturated engines never do."""
    beat = _beat(heartbeat, phase)
    if beat is not None and now - beat > grace:
        return (
            f"the engine's event loop has not answered for {_seconds(now - beat)}, longer than the grace of "
            f"{_seconds(grace)}{_stopped_text(phase)}"
        )
    if heartbeat is not None and (standing := standing_s(heartbeat)) is not None and standing > grace:
        return (
            f"{heartbeat.running or 0} running, {heartbeat.waiting or 0} waiting and {heartbeat.awaiting or 0} "
            f"unanswered requests, but no step for "
            f"{_seconds(standing)}, longer than the grace of {_seconds(grace)}{_stopped_text(phase)}"
        )
    for process in phase.stopped:
        if process.since is not None and now - process.since > grace:
            return f"{_process(process)} has been stopped (state T) for {_seconds(now - process.since)}"
    return None


def standing_s(heartbeat: Heartbeat) -> float | None:
    """Seconds for which there was work to do and no step was taken, as of the beat; None when there is no work.

    A request that waits for its first byte is work. One whose answer is under way is work only while the engine holds
    requests: a slow reader of a finished answer is not. An open websocket says nothing, it may wait for its client.
    """
    at = heartbeat.at
    held = (heartbeat.running or 0) + (heartbeat.waiting or 0)
    answering = (heartbeat.in_flight or 0) - (heartbeat.sockets or 0)
    if at is None or not ((heartbeat.awaiting or 0) > 0 or (answering > 0 and held > 0)):
        return None
    marks = [mark for mark in (heartbeat.step_at, heartbeat.busy_since) if mark is not None]
    return max(0.0, at - max(marks, default=at))


def _beat(heartbeat: Heartbeat | None, phase: Phase) -> float | None:
    """When the event loop was last seen alive: its beat, or the moment from which beats are due."""
    marks = (None if heartbeat is None else heartbeat.at, phase.since)
    return max((mark for mark in marks if mark is not None), default=None)


def _silent(heartbeat: Heartbeat | None, now: float) -> list[str]:
    if heartbeat is None or heartbeat.at is None:
        return ["the engine has written no heartbeat"]
    age = now - heartbeat.at
    if _fresh(age, BEAT_FRESH_S):
        return []
    return [f"the last heartbeat was written {_ago(age)}, wanted at most {_seconds(BEAT_FRESH_S)}"]


def _stopped(phase: Phase) -> list[str]:
    return [f"{_process(process)} is stopped (state T)" for process in phase.stopped]


def _stopped_text(phase: Phase) -> str:
    names = [_process(process) for process in phase.stopped]
    return f"; stopped (state T): {', '.join(names)}" if names else ""


def _unlisted(phase: Phase) -> list[str]:
    return [] if phase.models else ["the engine lists no model"]


def _unproven(phase: Phase, plugin_errors: Sequence[str]) -> list[str]:
    missing = [role for role in plugin_proof.ROLES if not phase.plugins.get(role)]
    if not missing:
        return []
    why = f" ({'; '.join(plugin_errors)})" if plugin_errors else ""
    return [f"nothing proves the appliance's plugin loaded in: {', '.join(missing)}{why}"]


def _routes_off(
    acceleration: AccelerationReport | None, plan: PlanRecord | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The expected routes that are off with their reasons: those that are missed, and those a person switched off."""
    routes = (acceleration or AccelerationReport()).routes
    missed: dict[str, str] = {}
    overridden: dict[str, str] = {}
    for name in (plan or PlanRecord()).expected_acceleration or ():
        route = routes.get(name)
        if route is None:
            missed[name] = "not reported"
        elif route.state != "enabled":
            reason = route.reason or str(route.state)
            (overridden if reason == "user_override" else missed)[name] = reason
    return missed, overridden


def _faulty(acceleration: AccelerationReport | None, missed: dict[str, str]) -> dict[str, str]:
    """Return the missed routes that are a fault of this start.

    A kernel that this build has on no card is none: the engine serves rightly without it, and the report says so.
    """
    routes = (acceleration or AccelerationReport()).routes
    return {name: reason for name, reason in missed.items() if not (name in routes and routes[name].not_built)}


def _routes_missing(
    acceleration: AccelerationReport | None, plan: PlanRecord | None, missed: dict[str, str]
) -> list[str]:
    if plan is None:
        return ["plan.json is missing or unreadable, so nobody knows which routes are expected"]
    if missed and acceleration is None:
        return [f"acceleration.json is missing or unreadable, {len(missed)} routes are expected"]
    missed = {name: reason for name, reason in missed.items() if name not in START_ONLY}
    if missed:
        return ["expected routes are off: " + ", ".join(f"{name} ({reason})" for name, reason in missed.items())]
    return []


def _working(details: Details) -> str:
    last = f"last step {_ago(details['step_age_s'])}" if details["step_age_s"] is not None else "no step yet"
    if details["state"] == "idle":
        return f"idle, {last}"
    return (
        f"{details['state']}: {details['running']} running, {details['waiting']} waiting, "
        f"{_requests(details['in_flight'])} in flight, {last}"
    )


def _work_details(heartbeat: Heartbeat | None, now: float) -> Details:
    if heartbeat is None:
        return {}
    at, step_at, standing = heartbeat.at, heartbeat.step_at, standing_s(heartbeat)
    return {
        "running": heartbeat.running or 0,
        "waiting": heartbeat.waiting or 0,
        "in_flight": heartbeat.in_flight or 0,
        "awaiting": heartbeat.awaiting or 0,
        "step": heartbeat.step_count or 0,
        "state": "idle" if standing is None else "saturated" if heartbeat.waiting else "working",
        "kv_usage": heartbeat.kv_usage,
        "step_age_s": None if step_at is None else round(now - step_at, 1),
        "beat_age_s": None if at is None else round(now - at, 1),
        "standing_s": None if standing is None else round(standing, 1),
        "steps_record": heartbeat.steps_record,
    }


def _process_details(phase: Phase) -> Details:
    written = phase.to_json()
    return {name: written[name] for name in ("pid", "restarts", "progress", "models", "plugins", "stopped")}


def _fresh(age: float, limit: float) -> bool:
    return -CLOCK_SLACK_S <= age <= limit


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def _ago(age: float) -> str:
    return f"{_seconds(max(age, 0.0))} ago" if age >= -CLOCK_SLACK_S else "before this host was restarted"


def _process(process: StoppedProcess) -> str:
    return f"{process.name or 'a process'} (pid {process.pid})"


def _requests(count: int) -> str:
    return f"{count} request{'' if count == 1 else 's'}"
