"""heartbeat: what the engine's API process knows of the engine's work, once a second."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from appliance.rundir import files
from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import FileRecord


@dataclass(frozen=True)
class Heartbeat(FileRecord):
    """One beat. Times are on rundir.clock(); counters begin with the process."""

    FILE: ClassVar[str] = files.HEARTBEAT

    at: float | None = None
    """When the event loop made it."""
    pid: int | None = None
    step_count: int | None = None
    """Steps that the engine has executed; `step` in the file."""
    step_at: float | None = None
    """When `step_count` last rose."""
    running: int | None = None
    waiting: int | None = None
    in_flight: int | None = None
    """Inference requests and websockets that the server has not finished answering."""
    sockets: int | None = None
    """The websockets among them."""
    awaiting: int | None = None
    """Requests wholly received and without a first byte of their answer."""
    oldest_awaiting_at: float | None = None
    busy_since: float | None = None
    """None exactly when there is nothing to do."""
    kv_usage: float | None = None
    """Share of the KV pages in use, 0 to 1."""
    finished: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    steps_record: str | None = None
    """`on`, or `off: ` and why no step is recorded."""
    missed_beats: int | None = None
    """Beats that could not be written."""
    missed_because: str | None = None

    @classmethod
    def from_json(cls, value: object) -> Heartbeat:
        """See Record."""
        given = JsonFields(value)
        return cls(
            at=given.number("at"),
            pid=given.integer("pid"),
            step_count=given.integer("step"),
            step_at=given.number("step_at"),
            running=given.integer("running"),
            waiting=given.integer("waiting"),
            in_flight=given.integer("in_flight"),
            sockets=given.integer("sockets"),
            awaiting=given.integer("awaiting"),
            oldest_awaiting_at=given.number("oldest_awaiting_at"),
            busy_since=given.number("busy_since"),
            kv_usage=given.number("kv_usage"),
            finished=given.integer("finished"),
            prompt_tokens=given.integer("prompt_tokens"),
            generation_tokens=given.integer("generation_tokens"),
            steps_record=given.text("steps_record"),
            missed_beats=given.integer("missed_beats"),
            missed_because=given.text("missed_because"),
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        record = asdict(self)
        record["step"] = record.pop("step_count")
        return record
