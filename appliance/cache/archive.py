"""Export and import of a sealed generation, for sites without a network: one tar, its manifest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.cache.store import Store


@dataclass(frozen=True)
class Archived:
    """What went through an archive. `already_there` is true when an import found the same content in place."""

    key: str
    files: int
    size_bytes: int
    already_there: bool = False


def export(store: Store, key: str, file: Path) -> Archived:
    """Write a sealed generation to `file`, verified while it is read; whole or not at all.

    Gzip when the name ends in `.gz` or `.tgz`. Raises CheckError.
    """
    raise NotImplementedError


def import_(store: Store, file: Path) -> Archived:
    """Bring the generation in `file` into the store, verified while it is read; whole or not at all.

    Raises CheckError for a damaged or truncated archive, for a name that leaves the generation, for a link or a device,
    and for a key that is there with other content.
    """
    raise NotImplementedError
