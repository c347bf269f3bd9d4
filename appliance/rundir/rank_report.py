"""ranks/RANK.json: the routes as one tensor parallel rank reports them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.rundir import files
from appliance.rundir.acceleration import RouteReport, routes_of
from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import Record

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class RankReport(Record):
    """What the process `pid` says of the routes that it runs."""

    pid: int | None = None
    at: float | None = None
    """On rundir.clock()."""
    routes: dict[str, RouteReport] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the kernels in this process, by what was hashed."""
    counters: dict[str, int] = field(default_factory=dict)
    refused: str | None = None
    """The line by which this rank refused to start."""
    resident_bytes: dict[str, int] = field(default_factory=dict)
    """What stays in its memory once it serves, by what it is."""

    @classmethod
    def from_json(cls, value: object) -> RankReport:
        """See Record."""
        given = JsonFields(value)
        return cls(
            pid=given.integer("pid"),
            at=given.number("at"),
            routes=routes_of(value),
            kernels=given.texts_by_name("kernels") or {},
            counters=given.integers_by_name("counters") or {},
            refused=given.text("refused"),
            resident_bytes=given.integers_by_name("resident_bytes") or {},
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return {
            "schema": 1,
            "pid": self.pid,
            "at": self.at,
            "kernels": self.kernels,
            "routes": {name: route.to_json() for name, route in self.routes.items()},
            "counters": self.counters,
            "refused": self.refused,
            "resident_bytes": self.resident_bytes,
        }

    def write(self, run_dir: Path, rank: int) -> None:
        """Replace a rank's file. Raises OSError."""
        files.share(run_dir / files.RANKS)
        files.write(run_dir / files.RANKS, f"{rank}.json", self.to_json())


def read_all(run_dir: Path) -> dict[int, RankReport]:
    """Return every readable report by rank."""
    found = {}
    for file in (run_dir / files.RANKS).glob("*.json"):
        value = files.read(file.parent, file.name) if file.stem.isdecimal() else None
        if value is not None:
            found[int(file.stem)] = RankReport.from_json(value)
    return found
