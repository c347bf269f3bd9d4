"""Who uses a generation, over processes and containers: two flocks for each key.

Whoever uses a generation holds `KEY.use` shared. Whoever decides about it, or reads it whole, holds `KEY.gate`
meanwhile, so that nobody takes the other lock between a look and a deed. The kernel lets go of both when a process
dies. The empty lock files stay: removing one that somebody waits for would give two the same lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from appliance.cache import durable
from appliance.cache.records import UnusableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = "locks"
TICK = 0.05


class Use:
    """A shared hold on `KEY.use`; `descriptor` is None on a volume that holds no lock file and takes none."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def locked(self) -> bool:
        """Whether anything is held: on a read-only volume without lock files nothing can be."""
        return self._descriptor is not None

    def alone(self) -> bool:
        """Whether nobody else uses the generation; to be asked behind the gate. Where nothing is locked: false."""
        if self._descriptor is None:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            # A conversion gives up the old lock first; behind the gate nobody takes it in between.
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        return True

    def release(self) -> None:
        """Let go. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def use(root: Path, key: str) -> Use:
    """Take a shared hold on `key`, behind its gate. Raises UnusableError where the file system has no locks."""
    descriptor = _open(root, f"{key}.use")
    if descriptor is not None:
        _flock(descriptor, fcntl.LOCK_SH, root)
    return Use(descriptor)


@contextmanager
def gate(root: Path, key: str, patience: float = 0.0, *, create: bool = True) -> Iterator[bool]:
    """Hold the gate of `key`; gives False, and holds nothing, when somebody kept it for longer than `patience` seconds.

    Raises UnusableError where the file system has no locks.
    """
    descriptor = _open(root, f"{key}.gate", create=create)
    if descriptor is None:
        yield True
        return
    try:
        yield _wait(descriptor, patience, root)
    finally:
        os.close(descriptor)


def in_use(root: Path, key: str) -> bool:
    """Whether somebody uses `key`, or decides about it at this moment."""
    with gate(root, key, create=False) as held:
        if not held:
            return True
        descriptor = _open(root, f"{key}.use", create=False)
        if descriptor is None:
            return False
        try:
            return not _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, root)
        finally:
            os.close(descriptor)


def _wait(descriptor: int, patience: float, root: Path) -> bool:
    until = time.monotonic() + patience
    while not _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, root):
        if time.monotonic() >= until:
            return False
        time.sleep(TICK)
    return True


def _flock(descriptor: int, operation: int, root: Path) -> bool:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UnusableError(
            "no_locks", f"{root} cannot be locked ({error.strerror}); put cache_dir on a file system with flock"
        ) from error
    return True


def _open(root: Path, name: str, *, create: bool = True) -> int | None:
    """Return a descriptor of a lock file, None where there is none and none can be made: nobody can write there."""
    path = root / FOLDER / name
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        # Over NFS an exclusive lock needs a descriptor that may write.
        return os.open(path, flags | os.O_RDWR | (os.O_CREAT if create else 0), 0o666)
    except OSError as error:
        if error.errno in durable.FULL:
            raise UnusableError("disk_full", f"{root} is full: not even a lock file fits") from error
        if error.errno != errno.ENOENT and error.errno not in durable.UNWRITABLE:
            raise UnusableError("not_writable", f"{path} cannot be opened ({error.strerror})") from error
    try:
        return os.open(path, flags | os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, *durable.UNWRITABLE):
            return None
        raise UnusableError("not_writable", f"{path} cannot be opened ({error.strerror})") from error
