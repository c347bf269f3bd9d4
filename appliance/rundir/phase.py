"""phase.json: the phase that the engine is in, as the guardian sees it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from appliance.rundir import files
from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import FileRecord, Record

ON_THE_WAY = ("starting", "loading", "warming")
"""The phases before the engine serves, in their order. The others are ready, draining and dead."""


@dataclass(frozen=True)
class StoppedProcess(Record):
    """A process of the engine in state T. `since` is on rundir.clock()."""

    pid: int | None = None
    name: str | None = None
    since: float | None = None

    @classmethod
    def from_json(cls, value: object) -> StoppedProcess:
        """See Record."""
        given = JsonFields(value)
        return cls(given.integer("pid"), given.text("name"), given.number("since"))

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return asdict(self)


@dataclass(frozen=True)
class Phase(FileRecord):
    """One phase of one start. Times are on rundir.clock(), `budget_s` and `stall_grace_s` in seconds."""

    FILE: ClassVar[str] = files.PHASE

    phase: str | None = None
    at: float | None = None
    """When the guardian wrote this."""
    since: float | None = None
    """When the phase began."""
    started: float | None = None
    """When the start began."""
    budget_s: float | None = None
    """What the start may take; None where nothing bounds it."""
    stall_grace_s: float | None = None
    reason: str | None = None
    progress: str | None = None
    """What the start is doing now."""
    pid: int | None = None
    """The engine's main process."""
    restarts: int | None = None
    models: tuple[str, ...] = ()
    """What the engine lists."""
    plugins: dict[str, bool] = field(default_factory=dict)
    """Whether a living process of each role has proven that the plugin is loaded in it."""
    stopped: tuple[StoppedProcess, ...] = ()

    @classmethod
    def from_json(cls, value: object) -> Phase:
        """See Record."""
        given = JsonFields(value)
        plugins = given.object("plugins") or {}
        return cls(
            phase=given.text("phase"),
            at=given.number("at"),
            since=given.number("since"),
            started=given.number("started"),
            budget_s=given.number("budget_s"),
            stall_grace_s=given.number("stall_grace_s"),
            reason=given.text("reason"),
            progress=given.text("progress"),
            pid=given.integer("pid"),
            restarts=given.integer("restarts"),
            models=given.texts("models") or (),
            plugins={str(role): loaded for role, loaded in plugins.items() if isinstance(loaded, bool)},
            stopped=tuple(map(StoppedProcess.from_json, given.objects("stopped"))),
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return asdict(self) | {
            "models": list(self.models),
            "stopped": [process.to_json() for process in self.stopped],
        }
