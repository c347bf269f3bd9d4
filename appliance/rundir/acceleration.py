"""acceleration.json: state and reason of every SM70 route, as the engine reports them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from appliance.rundir import files
from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import FileRecord, Record


@dataclass(frozen=True)
class RouteReport(Record):
    """One route. `state` is enabled, disabled or not_applicable; `reason` says why it is not enabled."""

    state: str | None = None
    reason: str | None = None
    source: str | None = None
    """Where its switch was set."""
    title: str | None = None
    replaces: str | None = None
    switch: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object) -> RouteReport:
        """See Record."""
        given = JsonFields(value)
        return cls(
            state=given.text("state"),
            reason=given.text("reason"),
            source=given.text("source"),
            title=given.text("title"),
            replaces=given.text("replaces"),
            switch=given.text("switch"),
            details=given.object("details") or {},
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return asdict(self)

    @property
    def not_built(self) -> bool:
        """Whether it is off because this build has its kernel on no card."""
        return self.details.get("not_built") is True


def routes_of(value: object) -> dict[str, RouteReport]:
    """Return the routes under `routes` of a JSON object by their name; what is no object is left out."""
    found = JsonFields(value).objects_by_name("routes") or {}
    return {name: RouteReport.from_json(route) for name, route in found.items()}


def _by_rank(given: JsonFields, name: str) -> dict[str, dict[str, int]]:
    ranks = JsonFields(given.object(name) or {})
    return {rank: ranks.integers_by_name(rank) or {} for rank in given.object(name) or {}}


@dataclass(frozen=True)
class AccelerationReport(FileRecord):
    """The report as other processes read it. What its readers do not need passes through them as JSON."""

    FILE: ClassVar[str] = files.ACCELERATION

    profile: str | None = None
    expected_acceleration: tuple[str, ...] = ()
    """The routes that the profile requires."""
    routes: dict[str, RouteReport] = field(default_factory=dict)
    kernels: str | None = None
    """SHA-256 of the kernels' sources."""
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each rank that reports: steps, operators' calls, broken requests."""
    resident_bytes: dict[str, dict[str, int]] = field(default_factory=dict)
    """What stays in the memory of each rank, by what it is."""

    @classmethod
    def from_json(cls, value: object) -> AccelerationReport:
        """See Record."""
        given = JsonFields(value)
        return cls(
            profile=given.text("profile"),
            expected_acceleration=given.texts("expected_acceleration") or (),
            routes=routes_of(value),
            kernels=given.text("kernels"),
            counters=_by_rank(given, "counters"),
            resident_bytes=_by_rank(given, "resident_bytes"),
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return {
            "profile": self.profile,
            "expected_acceleration": list(self.expected_acceleration),
            "routes": {name: route.to_json() for name, route in self.routes.items()},
            "kernels": self.kernels,
            "counters": self.counters,
            "resident_bytes": self.resident_bytes,
        }
