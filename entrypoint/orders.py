"""What the guardian is to do, as plan.json says it; secrets come through the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from appliance import rundir
from appliance.errors import CheckError
from appliance.launch.keys import VARIABLE as API_KEY
from appliance.rundir.plan import PlanRecord
from entrypoint.answering import Api
from entrypoint.relay import is_own_secret

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

T = TypeVar("T")


@dataclass(frozen=True)
class Orders:
    """One plan, as far as the engine's process is concerned. Times in seconds. `plan` is the whole of it."""

    plan: PlanRecord
    command: tuple[str, ...]
    environment: dict[str, str]
    api: Api
    model: str
    gpus: tuple[int, ...]
    start: float
    progress: float
    stall_grace: float
    drain: float
    restart: bool
    max_restarts: int


def read(run_dir: Path, environment: Mapping[str, str]) -> Orders:
    """Read the orders; `environment` is the guardian's own, and the engine's is made on top of it.

    Raises CheckError when there is no plan, or one that lacks what the engine needs.
    """
    plan = PlanRecord.read(run_dir)
    if plan is None:
        raise CheckError(
            f"{run_dir / rundir.PLAN} is missing or unreadable; the guardian is started by `appliance serve`"
        )
    return of(plan, environment)


def of(plan: PlanRecord, environment: Mapping[str, str]) -> Orders:
    """Return the orders in a plan. Raises CheckError where it lacks what the engine needs."""
    settings = {name: sourced.value for name, sourced in _needed(plan.settings, "settings").items()}
    added = {name: str(sourced.value) for name, sourced in _needed(plan.environment, "environment").items()}
    health = _needed(plan.health, "health")
    _needed(plan.arguments, "arguments")
    # What the appliance alone reads would only lie about in every process of the engine.
    inherited = {name: value for name, value in environment.items() if not is_own_secret(name)}
    return Orders(
        plan=plan,
        command=_needed(plan.command, "command"),
        environment={**inherited, **added},
        api=Api(
            _needed(settings.get("host"), "settings.host"),
            _needed(settings.get("port"), "settings.port"),
            environment.get(API_KEY),
            tls=plan.tls,
        ),
        model=_needed(plan.served_model_name, "served_model_name"),
        gpus=_needed(plan.gpus, "gpus"),
        start=_needed(health.get("start"), "health.start"),
        progress=_needed(health.get("progress"), "health.progress"),
        stall_grace=_needed(health.get("stall_grace"), "health.stall_grace"),
        drain=_needed(health.get("drain"), "health.drain"),
        restart=_needed(settings.get("on_engine_exit"), "settings.on_engine_exit") == "restart",
        max_restarts=_needed(settings.get("max_restarts"), "settings.max_restarts"),
    )


def _needed(value: T | None, name: str) -> T:
    if value is None:
        raise CheckError(f"{rundir.PLAN} has no readable {name}; `appliance serve` of this version writes it anew")
    return value
