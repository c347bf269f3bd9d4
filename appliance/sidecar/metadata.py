"""GET /v1/version, /v1/metadata, /v1/topology, /v1/profile: what runs, on what, and why this."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from appliance import __version__, rundir
from appliance.rundir import plugin_proof
from appliance.rundir.acceleration import AccelerationReport
from appliance.rundir.plan import PlanRecord
from appliance.sidecar import answers
from appliance.sidecar.endpoints import listed
from appliance.sidecar.records import UNAVAILABLE, given, living_phase, read_plan
from appliance.topology import islands
from appliance.topology.machine import machine_of

if TYPE_CHECKING:
    from appliance.rundir.phase import Phase
    from appliance.rundir.plan import PlannedCheckpoint, SourcedValue

LICENCE = "Apache-2.0"

CARD_BYTES = 16 * 1024
"""A model card's front matter is its first lines."""


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
    planned = (PlanRecord.read(run_dir) or PlanRecord()).versions or {}
    loaded = plugin_proof.of_role(run_dir, "api")
    report = AccelerationReport.read(run_dir) or AccelerationReport()
    return answers.Version(
        appliance=__version__,
        engine_appliance=loaded.appliance or None,
        engine_source=loaded.source or None,
        vllm=loaded.vllm or planned.get("vllm") or None,
        torch=loaded.torch or planned.get("torch") or None,
        python=loaded.python or planned.get("python") or None,
        kernels=report.kernels or loaded.kernels or planned.get("kernels") or None,
    )


def started_at(phase: Phase | None, now: float, utc: datetime) -> str | None:
    """Return when the start of `phase` began, or None when none runs. `now` is `utc` on rundir.clock()."""
    started = None if phase is None else phase.started
    return None if started is None else (utc - timedelta(seconds=now - started)).isoformat(timespec="seconds")


def described(plan: PlanRecord, started: str | None, endpoints: list[answers.Endpoint]) -> answers.Metadata:
    """Return the metadata in a plan. Raises TypeError where the plan lacks any of it."""
    scheme = "https" if plan.tls else "http"
    given(plan.arguments)
    return answers.Metadata(
        profile=given(plan.profile),
        title=given(plan.title),
        engine=given(plan.engine),
        served_model_name=given(plan.served_model_name),
        model=_checkpoint(given(plan.model)),
        draft=_checkpoint(plan.draft) if plan.draft else None,
        licence=LICENCE,
        gpus=list(given(plan.gpus)),
        engine_url=f"{scheme}://{given(plan.setting('host'))}:{given(plan.setting('port'))}",
        started_at=started,
        endpoints=endpoints,
    )


def _checkpoint(model: PlannedCheckpoint) -> answers.Checkpoint:
    return answers.Checkpoint(
        origin=given(model.origin),
        repository=given(model.repository),
        revision=model.revision,
        kind=given(model.kind),
        folder=given(model.folder),
        licence=licence_of(Path(given(model.folder))),
    )


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


def wired(plan: PlanRecord) -> answers.Topology:
    """Return the topology in a plan. Raises TypeError where the plan lacks it."""
    machine = machine_of(given(plan.machine))
    return answers.Topology(
        machine=given(plan.machine),
        chosen_gpus=list(given(plan.gpus)),
        full_mesh=islands.is_full_mesh(machine),
        nvlink_islands=[list(island) for island in islands.nvlink_islands(machine)],
        peer_islands=[list(island) for island in islands.peer_islands(machine)],
        description=islands.describe(machine),
    )


def chosen(plan: PlanRecord) -> answers.Profile:
    """Return the decisions in a plan. Raises TypeError where the plan lacks any of them."""
    selection = given(plan.selection)
    others = [(fit, True) for fit in selection["ranked"] if fit["profile"] != selection["chosen"]]
    others += [(fit, False) for fit in selection["rejected"] if fit["profile"] != selection["chosen"]]
    return answers.Profile(
        name=given(plan.profile),
        title=given(plan.title),
        selected=selection["source"],
        gpus_reason=selection["gpus_reason"],
        others=[
            answers.OtherProfile(name=fit["profile"], title=fit["title"], fits=fits, reasons=fit["reasons"])
            for fit, fits in others
        ],
        gpus=list(given(plan.gpus)),
        settings=_sourced(plan.settings),
        arguments=_sourced(plan.arguments),
        passthrough=list(given(plan.passthrough)),
        health=given(plan.health),
        memory=plan.memory,
        expected_acceleration=list(given(plan.expected_acceleration)),
        warnings=list(given(plan.warnings)),
    )


def _sourced(values: dict[str, SourcedValue] | None) -> dict[str, answers.Sourced]:
    return {name: answers.Sourced(value=one.value, source=one.source) for name, one in given(values).items()}
