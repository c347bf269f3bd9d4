"""exit.json: why the appliance ended, with its exit status."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from appliance.rundir import files
from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import FileRecord


@dataclass(frozen=True)
class ExitRecord(FileRecord):
    """The end. `program` is supervisord's name for the program that ended; `at` is on rundir.clock()."""

    FILE: ClassVar[str] = files.EXIT

    status: int | None = None
    reason: str | None = None
    program: str | None = None
    at: float | None = None

    @classmethod
    def from_json(cls, value: object) -> ExitRecord:
        """See Record."""
        given = JsonFields(value)
        return cls(given.integer("status"), given.text("reason"), given.text("program"), given.number("at"))

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return asdict(self)
