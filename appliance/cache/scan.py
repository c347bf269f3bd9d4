"""What lies in a generation's folder, without following a link, and the hashes of its files."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.cache import durable
from appliance.cache.records import Problem
from appliance.cache.stamp import STAMP, USE, Stamped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

SUBFOLDERS = ("vllm", "inductor", "triton", "cuda", "sm70")

READERS = 4
"""Files hashed at once: SHA-256 lets go of the interpreter, and a disk gains from a short queue."""

_VOLATILE = ("cuda/", "vllm/gpu_p2p_access_cache")
_LEAKY = "cache_key_factors.json"


def nothing_seen(_: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Entry:
    """One regular file. Equal entries are, for all that a file system tells, the same content."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class Scan:
    """A generation's files by their name relative to it.

    `files` can be stamped. `volatile` are used and never stamped, `passing` are locks and what a writer has not
    renamed yet, `secret` must go, `odd` are links, devices, sockets and pipes, which nothing here makes.
    """

    files: dict[str, Entry] = field(default_factory=dict)
    volatile: dict[str, Entry] = field(default_factory=dict)
    passing: dict[str, Entry] = field(default_factory=dict)
    secret: dict[str, Entry] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many files there are."""
        return sum(map(len, (self.files, self.volatile, self.passing, self.secret)))

    @property
    def size_bytes(self) -> int:
        """What they add up to."""
        kinds = (self.files, self.volatile, self.passing, self.secret)
        return sum(entry.size for kind in kinds for entry in kind.values())


def scan(folder: Path) -> Scan:
    """Return what lies in `folder`, but for the cache's own records. Files that vanish meanwhile are left out.

    Raises OSError when a folder cannot be read.
    """
    found = Scan()
    for name, status in _walk(folder):
        if not stat.S_ISREG(status.st_mode):
            found.odd.append(name)
            continue
        _kind(found, name, status.st_size)[name] = Entry(status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def is_artefact(name: str, size: int) -> bool:
    """Whether a file of this name, relative to its generation, may be stamped there."""
    steps = name.split("/")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    plain = len(steps) > 1 and not any(step in ("", ".", "..") or "\0" in step for step in steps)
    found = Scan()
    return plain and steps[0] in SUBFOLDERS and _kind(found, name, size) is found.files


def _kind(found: Scan, name: str, size: int) -> dict[str, Entry]:
    base = name.rpartition("/")[2]
    if base == _LEAKY:
        return found.secret
    if name.startswith(_VOLATILE):
        return found.volatile
    # Locks are empty; writers of vLLM, inductor and Triton name what is not whole yet like this.
    unfinished = base.endswith(".tmp") or "tmp.pid_" in name or name.startswith("sm70/.")
    if unfinished or (base.endswith(".lock") and size == 0):
        return found.passing
    return found.files


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    todo = [""]
    while todo:
        inside = todo.pop()
        try:
            entries = sorted(os.scandir(folder / inside), key=lambda entry: entry.name)
        except FileNotFoundError:
            if not inside:
                raise
            continue
        for entry in entries:
            if not inside and (entry.name in (STAMP, USE) or entry.name.startswith((f".{STAMP}.", f".{USE}."))):
                continue
            name = f"{inside}/{entry.name}" if inside else entry.name
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                todo.append(name)
            else:
                yield name, status


def check(
    folder: Path,
    stamped: Mapping[str, Stamped],
    found: Mapping[str, Entry],
    seen: Callable[[int], None] = nothing_seen,
) -> Iterator[Problem]:
    """Yield every file that does not fit the stamp: what shows without reading first."""
    yield from misfits(stamped, found)
    yield from misread(folder, stamped, found, seen)


def misfits(stamped: Mapping[str, Stamped], found: Mapping[str, Entry]) -> Iterator[Problem]:
    """Yield stamped files that are absent or of another size."""
    for name, wanted in stamped.items():
        entry = found.get(name)
        if entry is None:
            yield Problem(name, "is missing")
        elif entry.size != wanted.size:
            yield Problem(name, f"has {entry.size} bytes, the stamp says {wanted.size}")


def misread(
    folder: Path,
    stamped: Mapping[str, Stamped],
    found: Mapping[str, Entry],
    seen: Callable[[int], None] = nothing_seen,
) -> Iterator[Problem]:
    """Yield those of the other stamped files that cannot be read or have another SHA-256."""
    readable = {name: wanted for name, wanted in stamped.items() if name in found and found[name].size == wanted.size}

    def read(name: str) -> Problem | None:
        try:
            hashed = hash_file(folder, name, seen)
        except OSError as error:
            return Problem(name, f"cannot be read ({error.strerror})")
        if hashed != readable[name]:
            return Problem(name, f"has SHA-256 {hashed.sha256[:12]}…, the stamp says {readable[name].sha256[:12]}…")
        return None

    with ThreadPoolExecutor(READERS) as readers:
        try:
            yield from filter(None, readers.map(read, readable))
        finally:
            # Whoever stops at the first problem does not wait for the rest.
            readers.shutdown(cancel_futures=True)


def hash_files(
    folder: Path, names: Collection[str], seen: Callable[[int], None] = nothing_seen
) -> dict[str, tuple[Stamped, Entry]]:
    """Bring files to the disk and hash them. One that vanishes or changes meanwhile is left out. Raises OSError."""

    def read(name: str) -> tuple[Stamped, Entry] | None:
        try:
            before = _entry(folder / name)
            durable.sync_file(folder / name)
            hashed = hash_file(folder, name, seen)
            after = _entry(folder / name)
        except FileNotFoundError:
            return None
        return (hashed, after) if before == after and hashed.size == after.size else None

    with ThreadPoolExecutor(READERS) as readers:
        return {name: result for name, result in zip(names, readers.map(read, names), strict=True) if result}


def hash_file(folder: Path, name: str, seen: Callable[[int], None] = nothing_seen) -> Stamped:
    """Return size and SHA-256 of one file as they are read. Raises OSError, as for a link."""
    digest, size = hashlib.sha256(), 0
    with open_file(folder / name) as file:
        buffer = bytearray(durable.CHUNK)
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            size += count
            seen(count)
    return Stamped(size, digest.hexdigest())


def open_file(path: Path) -> io.FileIO:
    """Open a regular file for reading, never through a link. Raises OSError."""
    # Without O_NONBLOCK a pipe that somebody planted would hold the start forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = io.FileIO(descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def _entry(path: Path) -> Entry:
    status = path.lstat()
    return Entry(status.st_size, status.st_mtime_ns, status.st_ino)
