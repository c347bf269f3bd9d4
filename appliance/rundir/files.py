"""The files of the run directory: who writes which, and how they are written and read whole.

Each is written under a temporary name and renamed, readable by everyone. Where that finds no space any more, the file
that stands there is written over in its place, which needs none.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

PLAN = "plan.json"
PHASE = "phase.json"
HEARTBEAT = "heartbeat"
STEPS = "steps.jsonl"
PREVIOUS_STEPS = "steps.1.jsonl"
PLUGINS = "plugins"
RANKS = "ranks"
ACCELERATION = "acceleration.json"
CACHE = "cache.json"
EXIT = "exit.json"


class RunFile(NamedTuple):
    """One file of the run directory, or one folder with a file for each process. `record` is its dataclass."""

    name: str
    writer: str
    record: str
    content: str
    folder: bool = False


TABLE = (
    RunFile(PLAN, "entrypoint", "plan.PlanRecord", "the resolved plan, without secrets"),
    RunFile(PHASE, "guardian", "phase.Phase", "phase, since when, budget, engine process; refreshed every second"),
    RunFile(HEARTBEAT, "engine", "heartbeat.Heartbeat", "event-loop beat, step count, requests in the engine"),
    RunFile(STEPS, "engine", "step_line.StepLine", "one line for each executed step"),
    RunFile(PREVIOUS_STEPS, "engine", "step_line.StepLine", "the older lines, after a rotation"),
    RunFile(
        PLUGINS, "engine", "plugin_proof.PluginProof", "PID.json: the plugin is loaded in that process", folder=True
    ),
    RunFile(ACCELERATION, "engine", "acceleration.AccelerationReport", "state and reason of every route"),
    RunFile(RANKS, "engine", "rank_report.RankReport", "RANK.json: the routes as that rank reports them", folder=True),
    RunFile(CACHE, "guardian", "cache_start.CacheStart", "what the compile cache did for this start, and why"),
    RunFile(
        EXIT, "guardian, else the event listener", "exit_record.ExitRecord", "why the appliance ended, its exit status"
    ),
)
"""Every file of the contract."""


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
    for entry in TABLE:
        files = (folder / entry.name).glob("*.json") if entry.folder else (folder / entry.name,)
        for file in files:
            file.unlink(missing_ok=True)
