"""cache.json: what the compile cache did for this start."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from appliance.rundir import files
from appliance.rundir.json_fields import JsonFields
from appliance.rundir.record import FileRecord


@dataclass(frozen=True)
class CacheStart(FileRecord):
    """One start on the cache. `reason` is a stable word of appliance.cache.store or of entrypoint.compile_cache."""

    FILE: ClassVar[str] = files.CACHE

    enabled: bool | None = None
    state: str | None = None
    """cold, warm or resumed; off where nothing is kept."""
    reason: str | None = None
    detail: str | None = None
    key: str | None = None
    folder: str | None = None
    parts: dict[str, str] | None = None
    """What the key is made of."""
    rebuilt: bool | None = None
    sealed: bool | None = None
    seal_reason: str | None = None
    tokens_match: bool | None = None
    """Whether a warm start gave the greedy tokens of the cold one; None where there was nothing to compare."""

    @classmethod
    def from_json(cls, value: object) -> CacheStart:
        """See Record."""
        given = JsonFields(value)
        return cls(
            enabled=given.flag("enabled"),
            state=given.text("state"),
            reason=given.text("reason"),
            detail=given.text("detail"),
            key=given.text("key"),
            folder=given.text("folder"),
            parts=given.texts_by_name("parts"),
            rebuilt=given.flag("rebuilt"),
            sealed=given.flag("sealed"),
            seal_reason=given.text("seal_reason"),
            tokens_match=given.flag("tokens_match"),
        )

    def to_json(self) -> dict[str, Any]:
        """See Record."""
        return {"schema": 1, **asdict(self)}
