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
    routes: dict[str, RouteReport] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object) -> RankReport:
        """See Record."""
        return cls(JsonFields(value).integer("pid"), routes_of(value))

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return {"pid": self.pid, "routes": {name: route.to_json() for name, route in self.routes.items()}}


def read_all(run_dir: Path) -> dict[int, RankReport]:
    """Return every readable report by rank."""
    found = {}
    for file in (run_dir / files.RANKS).glob("*.json"):
        value = files.read(file.parent, file.name) if file.stem.isdecimal() else None
        if value is not None:
            found[int(file.stem)] = RankReport.from_json(value)
    return found
