"""What the checks are about: a planned start, or without a plan the start that is most likely meant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.errors import ConfigurationError
from appliance.launch.settings import SETTINGS
from appliance.paths import default_state_dir
from appliance.profiles import catalogue
from appliance.profiles.rehearsal import notice, rehearsed
from appliance.profiles.schema import Needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.launch.plan import Plan, PlannedModel
    from appliance.launch.request import Request
    from appliance.profiles.schema import Profile


@dataclass(frozen=True)
class Scope:
    """The start that is checked. `settings` are values by their names in launch.settings, derived ones included.

    `host_memory` is what the start is known to take of the host's memory, in bytes.
    """

    engine: str
    needs: Needs
    gpus: tuple[int, ...]
    settings: Mapping[str, Any]
    host_memory: int = 0
    model: PlannedModel | None = None
    draft: PlannedModel | None = None
    expected: tuple[str, ...] = ()
    """The SM70 routes that the profile counts on."""
    rehearsal: str | None = None
    """Says that the machine is no V100's; None where it is one's."""

    def folder(self, name: str) -> Path:
        """The folder that a setting names."""
        return Path(str(self.settings[name]))


def of_plan(plan: Plan) -> Scope:
    """Return what there is to check of a plan."""
    needs = Needs.model_validate(plan.needs)
    values = {name: sourced.value for name, sourced in plan.settings.items()}
    return Scope(
        plan.engine,
        needs,
        plan.gpus,
        values,
        _host_memory(plan, needs),
        plan.model,
        plan.draft,
        plan.expected_acceleration,
        plan.rehearsal,
    )


def _host_memory(plan: Plan, needs: Needs) -> int:
    """Shared memory counts against the container's memory too; the portable engine has all it needs there."""
    memory = plan.memory
    if memory is None or memory.get("device") != "host":
        return needs.shm_bytes
    parts = sum(int(part["bytes"]) for part in (*memory["parts"], *memory["outside"]))
    return needs.shm_bytes + parts + int(memory["kv_bytes"])


def likely(asked: Request) -> Scope:
    """Return what there is to check where no plan can be made: of the pinned profile, else of the machine's kind."""
    given = {name: sourced.value for name, sourced in asked.settle().settings.items()}
    values = {name: setting.default for name, setting in SETTINGS.items()} | given
    platform = values["vllm_platform"]
    profile = rehearsed(_likely_profile(given.get("profile"), has_gpus=bool(asked.machine.gpus)), platform)
    state = values["state_dir"] or str(default_state_dir())
    derived = {
        "state_dir": state,
        "run_dir": str(Path(state, "run")),
        "models_dir": str(Path(state, "models")),
        "cache_dir": str(Path(state, "cache")),
        "sidecar_host": values["host"],
    }
    values |= {name: value for name, value in derived.items() if values[name] is None}
    return Scope(
        profile.engine,
        profile.needs,
        (),
        values,
        profile.needs.shm_bytes,
        expected=profile.expected_acceleration,
        rehearsal=notice(platform, asked.machine.gpus),
    )


def _likely_profile(pinned: str | None, *, has_gpus: bool) -> Profile:
    profiles = catalogue.load_all()
    if pinned is not None:
        try:
            return catalogue.load(pinned)
        except ConfigurationError:
            pass  # what is wrong with it is the plan's failure, which is told already
    wanted = "v100" if has_gpus else "portable"
    return next(profile for profile in profiles if profile.engine == wanted)
