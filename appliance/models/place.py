"""Puts a finished folder in its place in one step, and lets one process at a time prepare it."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.models.progress import Progress


def is_there(folder: Path) -> bool:
    """Whether a checkpoint was put in `folder`. An empty folder is none: volumes come so."""
    return folder.is_dir() and any(folder.iterdir())


def partial(folder: Path) -> Path:
    """Where the files of a download that is not finished lie, beside `folder`."""
    return folder.with_name(f".{folder.name}.partial")


def fetched_bytes(folder: Path) -> int:
    """Count the bytes that an unfinished download has brought already."""
    return sum(path.stat().st_size for path in partial(folder).rglob("*") if path.is_file())


@contextmanager
def alone(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the right to prepare `folder`; waits while another process has it, and ends with the process.

    Raises CheckError when nothing can be written beside `folder`.
    """
    path = folder.with_name(f".{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise CheckError(
            f"cannot write {path.parent} ({error.strerror}); set APPLIANCE_MODELS_DIR to a writable folder, "
            f"or place the model in {folder} by hand"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another process is preparing {folder.name}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def put(finished: Path, folder: Path) -> None:
    """Rename `finished` to `folder` once all its bytes are on the disk. Raises OSError."""
    for path in finished.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    # A rename onto an empty folder replaces it.
    finished.rename(folder)


def sweep(folder: Path, pattern: str) -> None:
    """Remove what an earlier process that was killed left beside `folder`."""
    for left in folder.parent.glob(pattern):
        shutil.rmtree(left, ignore_errors=True)
