"""SHA-256 of a checkpoint's files, read once and remembered, so that a warm start does not read 30 GB again.

`SOURCE.json` in a folder says where its files came from and which hashes they had then. What was found while
reading is remembered in a stamp by size and modification time, beside the model or, where that folder is
read-only, under the state directory.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from appliance.models.progress import Progress

SOURCE = "SOURCE.json"
STAMP = ".sha256-stamp.json"

CHUNK = 8 << 20
"""Bytes read at a time: large enough that a disk reads ahead, small enough that progress moves."""


@dataclass(frozen=True)
class Verification:
    """What was proven of a folder's files, by name. `unpublished` have no hash to be held against."""

    folder: str
    read: tuple[str, ...]
    remembered: tuple[str, ...]
    unpublished: tuple[str, ...]

    @property
    def summary(self) -> str:
        """One line for people."""
        proven = len(self.read) + len(self.remembered)
        total = proven + len(self.unpublished)
        words = f"{proven} of {total} files have the SHA-256 they must have"
        if self.remembered:
            words += f" ({len(self.remembered)} unchanged since they were read)"
        if self.unpublished:
            words += f"; {len(self.unpublished)} of {total} files have no published hash: sizes and headers checked"
        return words


def file_sha256(path: Path, seen: Callable[[int], None] = lambda _: None) -> str:
    """Return the SHA-256 of a file in lower-case hex; `seen` is called with each number of bytes read.

    Raises OSError when the file cannot be read.
    """
    digest = hashlib.sha256()
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            seen(count)
    return digest.hexdigest()


def write_source(folder: Path, provider: str, repository: str, revision: str | None, hashes: Mapping[str, str]) -> None:
    """Write SOURCE.json: where the files of `folder` came from, with the SHA-256 of each. Raises OSError."""
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": hashes[name]} for name in sorted(hashes)}
    record = {"schema": 1, "provider": provider, "repository": repository, "revision": revision, "files": files}
    (folder / SOURCE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def recorded_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes that SOURCE.json gives, by file name; empty where there is none or it is damaged."""
    return {name: str(entry["sha256"]) for name, entry in _entries(folder / SOURCE).items()}


def remember(folder: Path, hashes: Mapping[str, str], state_dir: Path | None) -> None:
    """Stamp `hashes` (by file name) with each file's present size and modification time.

    A stamp that can be written nowhere costs time at the next start and nothing else.
    """
    entries = _stamped(folder, state_dir)
    for name, sha256 in hashes.items():
        status = (folder / name).stat()
        entries[name] = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
    text = json.dumps({"schema": 1, "files": entries}, indent=1) + "\n"
    for place in _stamp_places(folder, state_dir):
        temporary = place.with_name(f"{place.name}.{os.getpid()}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(place)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
        else:
            return


def verify(
    folder: Path,
    published: Mapping[str, str],
    *,
    progress: Progress,
    state_dir: Path | None = None,
    always: bool = False,
) -> Verification:
    """Hold the files of `folder` against `published` and SOURCE.json; `published` wins where both name a file.

    A file whose size and modification time are those of the stamp is not read again unless `always`.
    Raises CheckError, one line, for the first file that is missing, unreadable or different.
    """
    wanted = {**recorded_hashes(folder), **published}
    present = [name for name in _files(folder) if name not in wanted]
    for name in wanted:
        if not (folder / name).is_file():
            raise CheckError(f"{name} is missing from {folder}, and its SHA-256 is known; {_REMEDY}")
    stamped = {} if always else _stamped(folder, state_dir)
    known = {
        name: str(entry["sha256"])
        for name, entry in stamped.items()
        if name in wanted and _unchanged(folder / name, entry)
    }
    for name, found in known.items():
        _compare(folder, name, found, wanted[name])
    todo = [name for name in wanted if name not in known]
    found_now: dict[str, str] = {}
    if todo:
        total = sum((folder / name).stat().st_size for name in todo)
        with progress.task(f"SHA-256 of {folder.name}", total=total) as task:
            for name in todo:
                task.note(name)
                try:
                    found_now[name] = file_sha256(folder / name, task.advance)
                except OSError as error:
                    raise CheckError(f"{folder / name} cannot be read: {error.strerror}; {_REMEDY}") from error
                _compare(folder, name, found_now[name], wanted[name])
        remember(folder, found_now, state_dir)
    return Verification(str(folder), tuple(found_now), tuple(known), tuple(present))


_REMEDY = "remove the folder and run `appliance models fetch`, or copy the file anew"


def _compare(folder: Path, name: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise CheckError(
            f"{name} in {folder} has SHA-256 {found[:12]}…, wanted {wanted[:12]}…: it is damaged or another version; "
            f"{_REMEDY}"
        )


def _unchanged(path: Path, entry: Mapping[str, Any]) -> bool:
    status = path.stat()
    return bool(entry.get("bytes") == status.st_size and entry.get("mtime_ns") == status.st_mtime_ns)


def _files(folder: Path) -> list[str]:
    """Name every file of a checkpoint, relative to its folder; dot files and SOURCE.json are not of it."""
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(str(name) for name in names if str(name) != SOURCE and not any(p.startswith(".") for p in name.parts))


def _stamp_places(folder: Path, state_dir: Path | None) -> list[Path]:
    places = [folder / STAMP]
    if state_dir is not None:
        key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
        places.append(state_dir / "verified" / f"{key}.json")
    return places


def _stamped(folder: Path, state_dir: Path | None) -> dict[str, dict[str, Any]]:
    found = (_entries(place) for place in _stamp_places(folder, state_dir))
    return next((entries for entries in found if entries), {})


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of SOURCE.json or of a stamp that hold a hash, by file name; a damaged file has none."""
    try:
        files = json.loads(path.read_bytes())["files"]
        return {name: entry for name, entry in files.items() if isinstance(entry, dict) and "sha256" in entry}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
