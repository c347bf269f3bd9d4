"""What the cache tells its callers, and the error of a start that has none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from appliance.errors import CheckError


class UnusableError(CheckError):
    """This start has no cache. `reason` is a stable word.

    `read_only` and nothing sealed in it, `not_writable`, `disk_full`, `no_locks`, `busy` for too long, `broken_in_use`
    by another engine, `shared` with one that must not be emptied, `not_a_folder`.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def shown(text: str) -> str:
    """Return a name or another text out of the cache's folder as one line: what cannot be printed becomes an escape."""
    return text if text.isprintable() else ascii(text)[1:-1]


@dataclass(frozen=True)
class Problem:
    """What is wrong with one file of a generation, as one can print it; `file` is relative to it."""

    file: str
    what: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", shown(self.file))
        object.__setattr__(self, "what", shown(self.what))

    def __str__(self) -> str:
        return f"{self.file} {self.what}"


@dataclass(frozen=True)
class Generation:
    """What is known of a generation without reading its artefacts. Times in seconds since the epoch.

    `files` counts files and `size_bytes` adds them up, stamped or not. `in_use` is true while an engine holds it, and
    while it is opened, verified, exported or removed. `tokens` tells whether a start can compare greedy tokens.
    """

    key: str
    state: Literal["sealed", "building", "broken"]
    parts: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0
    files: int = 0
    created_at: float | None = None
    used_at: float | None = None
    sealed_at: float | None = None
    in_use: bool = False
    tokens: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Removed:
    """A generation that was removed, or would be in a dry run. `why` is `asked`, `age`, `size` or `left_over`."""

    key: str
    size_bytes: int
    why: Literal["asked", "age", "size", "left_over"]


@dataclass(frozen=True)
class Sealed:
    """Whether a generation is sealed now, and if not, why: a stable word, and one line for people.

    The words: `disk_full`, `read_only`, `busy`, `in_use`, `incomplete`, `broken`, `no_locks`, `failed`.
    """

    sealed: bool
    reason: str = ""
    text: str = ""
