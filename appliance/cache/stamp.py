"""The two records beside a generation's artefacts: stamp.json and use.json. Pure: text in, text out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

STAMP = "stamp.json"
USE = "use.json"
SCHEMA = 1

LARGEST = 64 << 20
"""Bytes that a stamp may have: three hundred thousand files. What is larger is no stamp, and is not read."""

LATEST = 1e15
"""Seconds since the epoch, in thirty million years."""

T = TypeVar("T")


class StampError(ValueError):
    """Not a stamp: its text says why, in a few words."""


@dataclass(frozen=True)
class Stamped:
    """One file as it was when the generation was sealed."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Stamp:
    """A sealed generation. `folder` is where it was made, `tokens` what its engine answered, times since the epoch."""

    key: str
    parts: Mapping[str, str]
    folder: str
    files: Mapping[str, Stamped]
    created_at: float
    sealed_at: float
    tokens: tuple[int, ...] | None = None

    def dump(self) -> bytes:
        """Write the stamp, with a hash of its own over everything in it."""
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "key": self.key,
            "parts": dict(sorted(self.parts.items())),
            "folder": self.folder,
            "created_at": self.created_at,
            "sealed_at": self.sealed_at,
            "tokens": None if self.tokens is None else list(self.tokens),
            "files": {name: [file.size, file.sha256] for name, file in sorted(self.files.items())},
        }
        return _encode({**record, "sha256": _digest(record)})


def parse(data: bytes) -> Stamp:
    """Read a stamp. Raises StampError for anything that `Stamp.dump` did not write."""
    record = _decode(data)
    told = record.pop("sha256", None)
    try:
        fits = told == _digest(record)
    except RecursionError:
        fits = False
    if not fits:
        raise StampError("is damaged: its own hash does not fit")
    if record.get("schema") != SCHEMA:
        raise StampError(f"has schema {record.get('schema')!a:.40}, wanted {SCHEMA}")
    try:
        files = {
            _typed(name, str): Stamped(_typed(size, int), _typed(sha256, str))
            for name, (size, sha256) in record["files"].items()
        }
        tokens = record["tokens"]
        return Stamp(
            key=_typed(record["key"], str),
            parts={_typed(name, str): _typed(part, str) for name, part in record["parts"].items()},
            folder=_typed(record["folder"], str),
            files=files,
            created_at=_time(record["created_at"]),
            sealed_at=_time(record["sealed_at"]),
            tokens=None if tokens is None else tuple(_typed(token, int) for token in tokens),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StampError(f"lacks what a stamp has ({error})") from None


@dataclass(frozen=True)
class Use:
    """Who uses a generation. `boot` is the kernel's boot id, times are since the epoch.

    `pending` is true from the moment when a start took the generation until its engine was ready or it let go.
    `deaths` counts the starts and engines in a row that ended before they were ready, `drops` how often what was in
    the generation had to go. `ready` tells that an engine got ready on it, so that nothing in it is missing.
    """

    key: str
    boot: str
    pid: int
    created_at: float
    used_at: float
    pending: bool = True
    deaths: int = 0
    drops: int = 0
    ready: bool = False
    parts: Mapping[str, str] = field(default_factory=dict)

    def dump(self) -> bytes:
        """Write the record."""
        return _encode({"schema": SCHEMA, **asdict(self)})


def parse_use(data: bytes) -> Use | None:
    """Read a record of use; None when it is damaged, which a start takes for another boot's."""
    try:
        record = _decode(data)
        return Use(
            key=_typed(record["key"], str),
            boot=_typed(record["boot"], str),
            pid=_typed(record["pid"], int),
            created_at=_time(record["created_at"]),
            used_at=_time(record["used_at"]),
            pending=_typed(record["pending"], bool),
            deaths=_typed(record["deaths"], int),
            drops=_typed(record["drops"], int),
            ready=_typed(record["ready"], bool),
            parts={_typed(name, str): _typed(part, str) for name, part in record["parts"].items()},
        )
    except (StampError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _typed(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{str(value)[:40]!r} is not of kind {kind.__name__}")
    return value


def _time(value: object) -> float:
    """Return seconds since the epoch. JSON can carry infinity, NaN and integers that no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LATEST:
        raise ValueError(f"{str(value)[:40]!r} is no time")
    return float(value)


def _encode(record: Mapping[str, Any]) -> bytes:
    # ASCII alone: a file's name may hold bytes that are no UTF-8, which JSON then writes as escapes.
    return json.dumps(record, indent=1, ensure_ascii=True, allow_nan=False).encode("ascii") + b"\n"


def _decode(data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise StampError("is not JSON") from None
    if not isinstance(record, dict):
        raise StampError("is not a JSON object")
    return record


def _digest(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, ensure_ascii=True).encode("ascii")).hexdigest()
