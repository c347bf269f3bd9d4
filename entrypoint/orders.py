"""What the guardian is to do, as plan.json says it; secrets come through the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance import rundir
from appliance.errors import CheckError
from appliance.launch.keys import VARIABLE as API_KEY
from entrypoint.answering import Api
from entrypoint.relay import is_own_secret

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Orders:
    """One plan, as far as the engine's process is concerned. Times in seconds. `plan` is the whole of it."""

    plan: Mapping[str, Any]
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

    Raises CheckError when there is no plan.
    """
    plan = rundir.read(run_dir, rundir.PLAN)
    if plan is None:
        raise CheckError(
            f"{run_dir / rundir.PLAN} is missing or unreadable; the guardian is started by `appliance serve`"
        )
    return of(plan, environment)


def of(plan: Mapping[str, Any], environment: Mapping[str, str]) -> Orders:
    """Return the orders in a plan's JSON."""
    settings = {name: sourced["value"] for name, sourced in plan["settings"].items()}
    added = {name: str(sourced["value"]) for name, sourced in plan["environment"].items()}
    health = plan["health"]
    # What the appliance alone reads would only lie about in every process of the engine.
    inherited = {name: value for name, value in environment.items() if not is_own_secret(name)}
    return Orders(
        plan=plan,
        command=tuple(plan["command"]),
        environment={**inherited, **added},
        api=Api(settings["host"], settings["port"], environment.get(API_KEY), tls="ssl_certfile" in plan["arguments"]),
        model=plan["served_model_name"],
        gpus=tuple(plan["gpus"]),
        start=health["start"],
        progress=health["progress"],
        stall_grace=health["stall_grace"],
        drain=health["drain"],
        restart=settings["on_engine_exit"] == "restart",
        max_restarts=settings["max_restarts"],
    )
