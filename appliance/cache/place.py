"""One generation's folder: what is there, and the few things that are done to it. Decides nothing, locks nothing."""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.cache import durable, scan
from appliance.cache.stamp import LARGEST, STAMP, USE, Stamp, StampError, Use, parse, parse_use

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from appliance.cache.scan import Entry, Scan
    from appliance.cache.stamp import Stamped

REMOVED = ".removed-"
IMPORTED = ".import-"

Known = dict[str, "tuple[Stamped, Entry]"]
"""Files whose hash was taken, with what the file system told of them then."""


@dataclass(frozen=True)
class Looked:
    """What lies in a generation's folder. `scan` is None when nothing is there."""

    scan: Scan | None
    stamp: Stamp | None = None
    stamp_problem: str | None = None
    use: Use | None = None


class Place:
    """The folder of one generation, `root/generations/KEY`. Every method raises OSError as it comes."""

    def __init__(self, root: Path, key: str) -> None:
        self.key = key
        self.root = root
        self.parent = root / "generations"
        self.folder = self.parent / key

    def look(self) -> Looked:
        """Return what is there, without reading an artefact."""
        try:
            status = self.folder.lstat()
        except FileNotFoundError:
            return Looked(None)
        if not stat.S_ISDIR(status.st_mode):
            return Looked(scan.Scan(odd=["."]), stamp_problem="cannot be: this is no folder")
        found = scan.scan(self.folder)
        use = parse_use(_read(self.folder / USE) or b"")
        data = _read(self.folder / STAMP)
        if data is None:
            return Looked(found, use=use)
        try:
            return Looked(found, parse(data), use=use)
        except StampError as error:
            return Looked(found, stamp_problem=str(error), use=use)

    def make(self) -> None:
        """Make the folder and those in it, as far as they are not there."""
        for name in scan.SUBFOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        durable.sync_folder(self.folder)
        durable.sync_folder(self.parent)

    def put_away(self) -> None:
        """Take everything away at once, and then remove it; a removal that breaks off leaves no half generation."""
        away = self.parent / f"{REMOVED}{self.key}-{os.getpid()}-{time.time_ns()}"
        durable.rename(self.folder, away)
        erase(away)

    def delete(self, names: Iterable[str]) -> None:
        """Remove single files, links or pipes."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def write_use(self, use: Use) -> None:
        """Replace the record of use."""
        durable.write_whole(self.folder / USE, use.dump())

    def write_stamp(self, stamp: Stamp) -> None:
        """Replace the stamp: from here on the generation is sealed."""
        durable.write_whole(self.folder / STAMP, stamp.dump())

    def take_hashes(self, known: Known) -> Known:
        """Hash every file that can be stamped and is not as in `known`, and bring all of them to the disk."""
        found = scan.scan(self.folder)
        self.delete(found.secret)
        same = {name: known[name] for name, entry in found.files.items() if name in known and known[name][1] == entry}
        new = scan.hash_files(self.folder, [name for name in found.files if name not in same])
        for folder in {parent for name in new for parent in _parents(self.folder, name)}:
            durable.sync_folder(folder)
        hashed = same | new
        # What another engine renamed or removed meanwhile is not there to be found at the next start.
        after = scan.scan(self.folder).files
        return {name: (stamped, entry) for name, (stamped, entry) in hashed.items() if after.get(name) == entry}


def erase(folder: Path) -> None:
    """Remove a folder or link, never what a link points to; what cannot be removed stays for the next prune."""
    with suppress(OSError):
        if stat.S_ISDIR(folder.lstat().st_mode):
            shutil.rmtree(folder)
        else:
            folder.unlink()


def _parents(folder: Path, name: str) -> list[Path]:
    path, found = (folder / name).parent, []
    while path != folder:
        found.append(path)
        path = path.parent
    return found


def _read(path: Path) -> bytes | None:
    """Return a record's bytes, None when there is none; what is no plain file of a record's size reads as nothing."""
    try:
        with scan.open_file(path) as file:
            return file.read(LARGEST + 1) if os.fstat(file.fileno()).st_size <= LARGEST else b""
    except FileNotFoundError:
        return None
    except OSError:
        return b""
