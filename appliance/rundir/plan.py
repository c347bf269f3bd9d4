"""plan.json as the processes read it that did not make it. appliance.launch.plan.Plan is what is written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from appliance.rundir import files
from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import FileRecord, Record


@dataclass(frozen=True)
class SourcedValue(Record):
    """A value and where it came from, as a person would look for it."""

    value: Any = None
    source: str = ""

    @classmethod
    def from_json(cls, value: object) -> SourcedValue:
        """See Record."""
        given = JsonFields(value)
        return cls(given.any("value"), given.text("source") or "")

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return {"value": self.value, "source": self.source}


@dataclass(frozen=True)
class PlannedCheckpoint(Record):
    """A model or a draft, and the folder where it is or will be."""

    origin: str | None = None
    folder: str | None = None
    repository: str | None = None
    revision: str | None = None
    kind: str | None = None

    @classmethod
    def from_json(cls, value: object) -> PlannedCheckpoint:
        """See Record."""
        given = JsonFields(value)
        names = ("origin", "folder", "repository", "revision", "kind")
        return cls(**{name: given.text(name) for name in names})

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return asdict(self)


@dataclass(frozen=True)
class PlanRecord(FileRecord):
    """One start. A field is None where the plan does not have it, or has something else there.

    `memory`, `selection` and `machine` are the JSON of the modules that made them.
    """

    FILE: ClassVar[str] = files.PLAN

    profile: str | None = None
    title: str | None = None
    engine: str | None = None
    served_model_name: str | None = None
    gpus: tuple[int, ...] | None = None
    settings: dict[str, SourcedValue] | None = None
    arguments: dict[str, SourcedValue] | None = None
    environment: dict[str, SourcedValue] | None = None
    passthrough: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    model: PlannedCheckpoint | None = None
    draft: PlannedCheckpoint | None = None
    expected_acceleration: tuple[str, ...] | None = None
    health: dict[str, int] | None = None
    """Budgets and graces in seconds."""
    memory: dict[str, Any] | None = None
    selection: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    warnings: tuple[str, ...] | None = None
    rehearsal: str | None = None
    """Says that the machine is no V100's; None where it is one's."""

    @classmethod
    def from_json(cls, value: object) -> PlanRecord:
        """See Record."""
        given = JsonFields(value)
        model, draft, health = given.object("model"), given.object("draft"), given.object("health")
        seconds = {str(name): JsonFields(health).integer(name) for name in health or {}}
        return cls(
            profile=given.text("profile"),
            title=given.text("title"),
            engine=given.text("engine"),
            served_model_name=given.text("served_model_name"),
            gpus=given.integers("gpus"),
            settings=_sourced(given, "settings"),
            arguments=_sourced(given, "arguments"),
            environment=_sourced(given, "environment"),
            passthrough=given.texts("passthrough"),
            command=given.texts("command"),
            model=None if model is None else PlannedCheckpoint.from_json(model),
            draft=None if not draft else PlannedCheckpoint.from_json(draft),
            expected_acceleration=given.texts("expected_acceleration"),
            health=None if health is None else {name: n for name, n in seconds.items() if n is not None},
            memory=given.object("memory"),
            selection=given.object("selection"),
            machine=given.object("machine"),
            versions=given.texts_by_name("versions"),
            warnings=given.texts("warnings"),
            rehearsal=given.text("rehearsal"),
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        lists = ("gpus", "passthrough", "command", "expected_acceleration", "warnings")
        record = asdict(self)
        return {"schema": 1} | {
            name: list(value) if name in lists and value is not None else value for name, value in record.items()
        }

    def setting(self, name: str) -> Any:  # noqa: ANN401 - settings are of several kinds
        """Return the value of a setting of the appliance, None where it is not there."""
        return (self.settings or {}).get(name, _NOTHING).value

    def argument(self, name: str) -> Any:  # noqa: ANN401
        """Return the value of an argument of vLLM, None where it is not there."""
        return (self.arguments or {}).get(name, _NOTHING).value

    @property
    def tls(self) -> bool:
        """Whether the engine serves HTTPS."""
        return "ssl_certfile" in (self.arguments or {})

    @property
    def planned_gpus(self) -> tuple[dict[str, Any], ...]:
        """The machine's JSON of each GPU that was chosen."""
        found = JsonFields(self.machine).objects("gpus")
        return tuple(gpu for gpu in found if gpu.get("index") in (self.gpus or ()))


_NOTHING = SourcedValue()


def _sourced(given: JsonFields, name: str) -> dict[str, SourcedValue] | None:
    found = given.objects_by_name(name)
    return None if found is None else {key: SourcedValue.from_json(value) for key, value in found.items()}
