"""GET /v1/version, /v1/metadata, /v1/topology, /v1/profile: what runs, on what, and why this."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request

from appliance import __version__, rundir
from appliance.rundir import plugin_proof
from appliance.sidecar import answers
from appliance.sidecar.endpoints import listed
from appliance.sidecar.records import UNAVAILABLE, living_phase, number, read_plan
from appliance.topology import islands
from appliance.topology.machine import machine_of

LICENCE = "Apache-2.0"

CARD_BYTES = 16 * 1024
"""A model card's front matter is its first lines."""

Record = dict[str, Any]


def router(run_dir: Path) -> APIRouter:
    """Return the endpoints over `run_dir`."""
    routes = APIRouter(prefix="/v1", tags=["metadata"])

    @routes.get("/version", summary="Versions of the appliance, of the engine that runs, and of its kernels")
    async def version() -> answers.Version:
        """Known from the engine's own processes as far as they have said them."""
        return versions(run_dir)

    @routes.get("/metadata", summary="Profile, model and draft, licences, GPUs, addresses", responses=UNAVAILABLE)
    async def metadata(request: Request) -> answers.Metadata:
        """What is served, and where."""
        started = started_at(living_phase(run_dir, rundir.clock()), rundir.clock(), datetime.now(UTC))
        return read_plan(run_dir, lambda plan: described(plan, started, listed(request.app)))

    @routes.get("/topology", summary="The GPUs, how they are wired, and which were chosen", responses=UNAVAILABLE)
    async def topology() -> answers.Topology:
        """The machine as the plan saw it."""
        return read_plan(run_dir, wired)

    @routes.get("/profile", summary="The profile, why it, why not the others, every value", responses=UNAVAILABLE)
    async def profile() -> answers.Profile:
        """The plan's decisions, each value with its source."""
        return read_plan(run_dir, chosen)

    return routes


def versions(run_dir: Path) -> answers.Version:
    """Return what is known of the versions. The plugin's own word counts: it runs in the engine's process."""
    plan = rundir.read(run_dir, rundir.PLAN) or {}
    planned = plan.get("versions")
    loaded = next((record for record in plugin_proof.records(run_dir) if record.get("role") == "api"), {})
    report = rundir.read(run_dir, rundir.ACCELERATION) or {}

    def said(name: str, *records: object) -> str | None:
        return next((str(r[name]) for r in records if isinstance(r, dict) and r.get(name)), None)

    return answers.Version(
        appliance=__version__,
        engine_appliance=said("appliance", loaded),
        engine_source=said("source", loaded),
        vllm=said("vllm", loaded, planned),
        torch=said("torch", loaded, planned),
        python=said("python", loaded, planned),
        kernels=said("kernels", report, loaded, planned),
    )


def started_at(phase: Record | None, now: float, utc: datetime) -> str | None:
    """Return when the start of `phase` began, or None when none runs. `now` is `utc` on rundir.clock()."""
    started = number(phase, "started")
    return None if started is None else (utc - timedelta(seconds=now - started)).isoformat(timespec="seconds")


def described(plan: Record, started: str | None, endpoints: list[answers.Endpoint]) -> answers.Metadata:
    """Return the metadata in a plan's JSON."""
    settings = plan["settings"]
    scheme = "https" if "ssl_certfile" in plan["arguments"] else "http"
    return answers.Metadata(
        profile=plan["profile"],
        title=plan["title"],
        engine=plan["engine"],
        served_model_name=plan["served_model_name"],
        model=_checkpoint(plan["model"]),
        draft=_checkpoint(plan["draft"]) if plan["draft"] else None,
        licence=LICENCE,
        gpus=plan["gpus"],
        engine_url=f"{scheme}://{settings['host']['value']}:{settings['port']['value']}",
        started_at=started,
        endpoints=endpoints,
    )


def _checkpoint(model: Record) -> answers.Checkpoint:
    fields = {name: model[name] for name in ("origin", "repository", "revision", "kind", "folder")}
    return answers.Checkpoint(**fields, licence=licence_of(Path(model["folder"])))


def licence_of(folder: Path) -> str | None:
    """Return the licence that the model card in `folder` states in its front matter, or None."""
    try:
        with (folder / "README.md").open("rb") as file:
            lines = file.read(CARD_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    if not lines or lines[0].strip() != "---":
        return None
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, colon, value = line.partition(":")
        if key == "license" and colon:
            return value.strip().strip("\"'") or None
    return None


def wired(plan: Record) -> answers.Topology:
    """Return the topology in a plan's JSON."""
    machine = machine_of(plan["machine"])
    return answers.Topology(
        machine=plan["machine"],
        chosen_gpus=plan["gpus"],
        full_mesh=islands.is_full_mesh(machine),
        nvlink_islands=[list(island) for island in islands.nvlink_islands(machine)],
        peer_islands=[list(island) for island in islands.peer_islands(machine)],
        description=islands.describe(machine),
    )


def chosen(plan: Record) -> answers.Profile:
    """Return the decisions in a plan's JSON."""
    selection = plan["selection"]
    others = [(fit, True) for fit in selection["ranked"] if fit["profile"] != selection["chosen"]]
    others += [(fit, False) for fit in selection["rejected"] if fit["profile"] != selection["chosen"]]
    taken_over = ("title", "gpus", "settings", "arguments", "passthrough", "health", "memory", "warnings")
    return answers.Profile(
        name=plan["profile"],
        selected=selection["source"],
        gpus_reason=selection["gpus_reason"],
        others=[
            answers.OtherProfile(name=fit["profile"], title=fit["title"], fits=fits, reasons=fit["reasons"])
            for fit, fits in others
        ],
        expected_acceleration=plan["expected_acceleration"],
        **{name: plan[name] for name in taken_over},
    )
