"""The run directory: small JSON files, each written whole under a temporary name and renamed.

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

    Raises OSError when the folder is full, read-only or gone; the old file then stands unchanged.
    """
    target = folder / name
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(target)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the record in `folder/name`, or None when it is missing or not a JSON object."""
    try:
        record = json.loads((folder / name).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def clear(folder: Path) -> None:
    """Remove what an earlier start left, so that no probe mistakes it for this one's."""
    for name in (PLAN, PHASE, HEARTBEAT, STEPS, "steps.1.jsonl", ACCELERATION, CACHE, EXIT):
        (folder / name).unlink(missing_ok=True)
    for each in (PLUGINS, RANKS):
        for record in (folder / each).glob("*.json"):
            record.unlink(missing_ok=True)
