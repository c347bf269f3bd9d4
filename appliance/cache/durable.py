"""Writing that outlives a power loss, and what a failed write means. Everything that the cache writes goes by here."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

CHUNK = 1 << 20


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; a power loss leaves the old file or the new one.

    Raises OSError, and the old one stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(temporary, data)
        _replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def rename(source: Path, target: Path) -> None:
    """Rename within one folder or between two, and bring it to the disk. Raises OSError."""
    _replace(source, target)
    for folder in {source.parent, target.parent}:
        sync_folder(folder)


def sync_file(path: Path) -> None:
    """Bring a file's content to the disk. Raises OSError."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Bring a folder's entries to the disk. Raises OSError."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def write_new(path: Path, parts: Iterable[bytes], *, executable: bool = False) -> None:
    """Write a file that must not be there yet, and bring its content to the disk.

    Raises OSError, or what `parts` raises; the file may then be there in part.
    """
    mode = 0o777 if executable else 0o666
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(source: Path, target: Path) -> None:
    source.replace(target)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot do this for a folder, and have nothing to bring to a disk of ours.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """Return the kernel's name for this boot, empty where it has none: then every start counts as another boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
