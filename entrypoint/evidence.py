"""What each process of a tree was doing when it stood still."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.vllm_plugin import stack_dump
from entrypoint import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psutil


def collect(tree: Sequence[psutil.Process], say: Callable[[str], None], wait: float = 2.0) -> None:
    """Make every process that can dump its stacks do so, say what the kernel tells of the others, and wait for it.

    Only a process that catches the signal gets it: any other would die of it.
    """
    for one in tree:
        status = _read(one.pid, "status")
        state = _field(status, "State") or "gone"
        where = _read(one.pid, "wchan")
        about = f"{one.pid} {processes.name(one)}: state {state}"
        if where not in ("", "0"):
            about += f", in the kernel at {where}"
        if catches(status) and not state.startswith(("T", "t")):
            with suppress(OSError):
                os.kill(one.pid, stack_dump.SIGNAL)
                about += "; its stacks follow in the engine's log"
        say(about)
        for line in _read(one.pid, "stack").splitlines():
            say(f"  {line}")
    time.sleep(wait)


def catches(status: str) -> bool:
    """Whether the process of this /proc/PID/status has a handler for the signal."""
    mask = _field(status, "SigCgt")
    return bool(mask) and bool(int(mask, 16) >> (stack_dump.SIGNAL - 1) & 1)


def _field(status: str, key: str) -> str:
    found = re.search(rf"^{key}:\s*(.*)$", status, re.MULTILINE)
    return found[1] if found else ""


def _read(pid: int, entry: str) -> str:
    # `stack` is root's alone on most kernels; a process may end meanwhile.
    try:
        return Path(f"/proc/{pid}/{entry}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
