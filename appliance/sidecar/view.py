"""What the status page shows, out of what the services know. Every text is plain; the template escapes it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from appliance import __version__, rundir
from appliance.acceleration.routes import ROUTES
from appliance.health import judge
from appliance.rundir.json_fields import JsonFields
from appliance.sidecar import acceleration, answers, cache, metadata
from appliance.sidecar.drawing import draw
from appliance.sidecar.records import Unavailable, given, read_plan
from appliance.topology.machine import machine_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.rundir.acceleration import AccelerationReport
    from appliance.rundir.plan import PlanRecord
    from appliance.sidecar.cache_state import Look
    from appliance.sidecar.gpus import Reading, Sample
    from appliance.sidecar.services import Services

UNKNOWN = "–"

CURVE = (240.0, 48.0)
"""Width and height of the throughput's curve."""

Record = dict[str, Any]


def status(services: Services) -> answers.Status:
    """Return what changes from second to second."""
    services.history.sample()
    now = rundir.clock()
    report = judge.report(services.run_dir, now)
    details = JsonFields(report.details)
    rates, course = services.history.rates(now), services.history.course()
    throughput = answers.Throughput(
        window_s=rates.window_s,
        generation_tokens=rates.generation_tokens,
        prompt_tokens=rates.prompt_tokens,
        steps=rates.steps,
        course=course,
    )
    running, waiting = details.integer("running"), details.integer("waiting")
    kv_usage, beat_age, step_age = (details.number(name) for name in ("kv_usage", "beat_age_s", "step_age_s"))
    return answers.Status(
        phase=report.phase,
        reason=report.reason,
        startup=report.startup_ok,
        live=report.live_ok,
        ready=report.ready_ok,
        elapsed_s=report.elapsed_s,
        budget_s=report.budget_s,
        running=running,
        waiting=waiting,
        in_flight=details.integer("in_flight"),
        kv_usage=kv_usage,
        beat_age_s=beat_age,
        step_age_s=step_age,
        throughput=throughput,
        shown={
            "phase": report.phase,
            "reason": report.reason,
            "startup": _passes(report.startup_ok),
            "live": _passes(report.live_ok),
            "ready": _passes(report.ready_ok),
            "generation": _per_second(rates.generation_tokens),
            "prompt": _per_second(rates.prompt_tokens),
            "steps": _per_second(rates.steps),
            "running": _text(running),
            "waiting": _text(waiting),
            "kv": UNKNOWN if kv_usage is None else f"{kv_usage:.0%}",
            "step-age": _age(step_age),
            "beat-age": _age(beat_age),
            "peak": _per_second(max(course, default=None)),
            **_shown_gpus(services.gpus.latest()),
        },
        curve=_curve(course),
        revision=_revision(services),
    )


def page(services: Services) -> Record:
    """Return what the template needs. What is not known is told in the place where it would stand."""
    look = services.cache.latest
    return {
        "version": __version__,
        "status": status(services),
        "gpus": _gpus(services.gpus.latest()),
        "gpu_problem": services.gpus.latest().problem,
        "engine": _known(lambda: read_plan(services.run_dir, _engine)),
        "topology": _known(lambda: read_plan(services.run_dir, _topology)),
        "profile": _known(lambda: read_plan(services.run_dir, metadata.chosen)),
        "routes": _known(lambda: _routes(services)),
        "cache": _known(lambda: _cache(services, look)),
        "versions": metadata.versions(services.run_dir),
        "size": size,
        "unknown": UNKNOWN,
    }


def size(value: float | None) -> str:
    """Bytes for people."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _known(build: Callable[[], Any]) -> Record:
    """What `build` gives under `value`, or under `problem` why there is none."""
    try:
        return {"value": build(), "problem": None}
    except Unavailable as error:
        return {"value": None, "problem": str(error)}


def _engine(plan: PlanRecord) -> Record:
    described = metadata.described(plan, None, [])
    return {"model": described.served_model_name, "url": described.engine_url, "title": described.title}


def _topology(plan: PlanRecord) -> Record:
    machine = machine_of(given(plan.machine))
    chosen = list(given(plan.gpus))
    wired = metadata.wired(plan)
    return {
        "drawings": draw(machine, chosen),
        "gpus": machine.gpus,
        "chosen": chosen,
        "islands": [island for island in wired.nvlink_islands if len(island) > 1],
        "driver": machine.driver,
        "lines": wired.description,
        "notes": machine.notes,
        "reason": given(plan.selection)["gpus_reason"],
    }


def _routes(services: Services) -> Record:
    engine = services.engine
    report = acceleration.report(services.run_dir, engine.known, engine.problem())
    expected = set(report.expected_acceleration)
    names = [name for name in (*ROUTES, *(report.routes.keys() - ROUTES.keys())) if name in report.routes]
    # What a person should look at comes first: expected and off, then what is on, then the rest.
    rank = {"enabled": 1, "disabled": 2, "not_applicable": 3}
    missed = {name for name in names if name in expected and report.routes[name].state != "enabled"}
    names.sort(key=lambda name: 0 if name in missed else rank[report.routes[name].state])
    rows = [{"name": name, "missed": name in missed, "route": report.routes[name]} for name in names]
    return {"report": report, "rows": rows}


def _cache(services: Services, look: Look | None) -> answers.Cache:
    if look is None:
        raise Unavailable("nobody has looked into the cache yet")
    return cache.described(look, services.jobs.last, writable=services.options.token is not None)


def _gpus(sample: Sample) -> list[Reading]:
    return list(sample.readings) if sample.problem is None else []


def _shown_gpus(sample: Sample) -> dict[str, str]:
    shown: dict[str, str] = {}
    for one in _gpus(sample):
        slowed = [name.replace("_", " ") for name, holds in one.throttles.items() if holds]
        errors = {**one.ecc, **one.link_errors}
        shown |= {
            f"gpu-{one.index}-memory": f"{size(one.memory_used)} of {size(one.memory_total)}",
            f"gpu-{one.index}-temperature": _unit(one.temperature, "°C"),
            f"gpu-{one.index}-power": _unit(one.power, "W"),
            f"gpu-{one.index}-clock": _unit(None if one.clock_sm is None else one.clock_sm / 1e6, "MHz"),
            f"gpu-{one.index}-slowed": one.problem or ", ".join(slowed) or "no",
            f"gpu-{one.index}-errors": str(sum(errors.values())) if errors else UNKNOWN,
        }
    return shown


def _curve(course: list[float]) -> str:
    """The points of an SVG line, the newest at the right; nothing where there is no curve yet."""
    if len(course) < 2:
        return ""
    width, height = CURVE
    top = max(course) or 1.0
    step = width / (len(course) - 1)
    return " ".join(f"{n * step:.1f},{height - 2 - (height - 4) * value / top:.1f}" for n, value in enumerate(course))


def _revision(services: Services) -> str:
    """A hash of what the page's tables rest on; ages and sizes that grow are left out."""
    look, job = services.cache.latest, services.jobs.last
    plan = services.run_dir / rundir.PLAN
    try:
        planned = plan.stat().st_mtime_ns
    except OSError:
        planned = 0
    engine = services.engine
    rests_on = (
        planned,
        _states(acceleration.newest(services.run_dir, engine.known, engine.problem())),
        engine.problem() is None,
        None
        if look is None
        else (look.start, look.problem, [(one.key, one.state, one.in_use) for one in look.generations]),
        None if job is None else (job.number, job.state),
        services.gpus.latest().problem is None,
    )
    text = json.dumps(rests_on, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _states(report: AccelerationReport | None) -> list[tuple[str, str, str]]:
    """States and reasons; a report's counters grow with every step."""
    routes = {} if report is None else report.routes
    return [(name, str(route.state), str(route.reason)) for name, route in routes.items()]


def _passes(ok: bool) -> str:
    return "passes" if ok else "fails"


def _per_second(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}"


def _text(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _age(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{seconds:.1f} s ago" if seconds < 60 else f"{time_of(seconds)} ago"


def time_of(seconds: float) -> str:
    """A duration for people."""
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f} {unit}"
