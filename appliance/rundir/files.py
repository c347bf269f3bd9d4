"""The run directory: small JSON files, each written whole under a temporary name and renamed, readable by everyone.

Where that finds no space any more, the file that stands there is written over in its place, which needs none.

plan.json          entrypoint   the resolved plan, without secrets
phase.json         guardian     phase, since when, budget, engine process, refreshed every second
heartbeat          engine       event-loop beat, step counter, requests in flight, running and waiting
steps.jsonl        engine       one line per engine step; rotated to steps.1.jsonl
plugins/PID.json   engine       proof that the plugin was loaded, one file per process
acceleration.json  engine       state and reason of every route
ranks/RANK.json    engine       the same of each rank, where ranks tell it themselves
cache.json         guardian     what the compile cache did for this start: key, folder, cold or warm, and why
exit.json          guardian     why the whole ended, with its exit status; the ender where the guardian could not
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PLAN = "plan.json"
PHASE = "phase.json"
HEARTBEAT = "heartbeat"
STEPS = "steps.jsonl"
PLUGINS = "plugins"
RANKS = "ranks"
ACCELERATION = "acceleration.json"
CACHE = "cache.json"
EXIT = "exit.json"


def clock() -> float:
    """Seconds on the clock that ages are taken from: never set back, shared by all containers of one host."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Replace `folder/name` by `record` as JSON; a reader sees the old file or the new one, never a part.

    On a full disk it is written over in place where its room is enough, and `read` looks again at what it sees torn.
    Raises OSError when there is no room, and when the folder is read-only or gone; the old file then stands unchanged.
    """
    target = folder / name
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    data = (json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n").encode()
    try:
        with temporary.open("wb") as file:
            # A sidecar in another container has another user id; whatever the umask, it may read and never write.
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        if error.errno not in _FULL or not _written_over(target, data):
            raise


_FULL = (errno.ENOSPC, errno.EDQUOT)
_PAGE = 4096
"""What a file has at least on every disk that pages are written to."""


def _written_over(target: Path, data: bytes) -> bool:
    """Write `data` into the pages that `target` has already. False where they are too few."""
    try:
        file = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(file).st_size
        if not size or len(data) > -(-size // _PAGE) * _PAGE:
            return False
        # Spaces after the object are JSON, and one call leaves the shortest moment for a reader to see half of it.
        written = os.pwrite(file, data[:-1].ljust(size - 1) + b"\n", 0)
        return written >= len(data)
    except OSError:
        return False
    finally:
        os.close(file)


def share(folder: Path) -> None:
    """Make `folder` where it is missing, for everyone to read whatever the umask. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    # Somebody else's folder, such as a volume's root, has the mode that they chose.
    with suppress(PermissionError):
        folder.chmod(folder.stat().st_mode | 0o755)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the record in `folder/name`, or None when it is missing or not a JSON object."""
    for again in (True, False):
        try:
            record = json.loads((folder / name).read_bytes())
        except OSError:
            return None
        except ValueError:
            if again:
                time.sleep(_TORN_S)
            continue
        return record if isinstance(record, dict) else None
    return None


_TORN_S = 0.002
"""Much longer than a page takes to be written."""


def clear(folder: Path) -> None:
    """Remove what an earlier start left, so that no probe mistakes it for this one's."""
    for name in (PLAN, PHASE, HEARTBEAT, STEPS, "steps.1.jsonl", ACCELERATION, CACHE, EXIT):
        (folder / name).unlink(missing_ok=True)
    for each in (PLUGINS, RANKS):
        for record in (folder / each).glob("*.json"):
            record.unlink(missing_ok=True)
