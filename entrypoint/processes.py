"""Process trees of Linux: adopt orphans, reap them, and leave none behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_TRACKER_SECONDS = 2.0
_TETHER = Path(__file__).with_name("tether.py")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, as PID 1 of a container is."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def tethered(command: list[str], sign: str = "SIGKILL") -> list[str]:
    """Return `command` so that it gets the signal named `sign` when its parent dies."""
    return [sys.executable, "-I", "-S", str(_TETHER), sign, *command]


def tree(root: int | None = None) -> list[psutil.Process]:
    """Return the living descendants of `root` (this process when None), parents first."""
    try:
        return [one for one in psutil.Process(root).children(recursive=True) if _status(one) != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def name(process: psutil.Process) -> str:
    """Return the title that the process shows: `VLLM::EngineCore` rather than `python3.11`."""
    with suppress(psutil.Error):
        words = process.cmdline()
        # setproctitle leaves one word; an ordinary command line is better told by its program.
        return words[0] if len(words) == 1 else process.name()
    return "?"


def stopped(processes: list[psutil.Process]) -> dict[int, str]:
    """Return the names by pid of those that a signal or a debugger holds."""
    held = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return {one.pid: name(one) for one in processes if _status(one) in held}


def reap(spare: int | None = None) -> list[int]:
    """Collect every dead child but `spare`, whose status its Popen object has to read. Returns their PIDs."""
    gone: list[int] = []
    for child in _children():
        if child != spare:
            with suppress(ChildProcessError):
                pid, _ = os.waitpid(child, os.WNOHANG)
                gone += [pid] if pid else []
    return gone


def _children() -> list[int]:
    return [one.pid for one in psutil.Process().children()]


def kill_orphans(spare: int) -> None:
    """SIGKILL every child but `spare`: a process that has one only gets others when their own parent died.

    Resource trackers are left to end by themselves, as in `kill_descendants`.
    """
    kill([one for one in psutil.Process().children() if one.pid != spare and not _tracks_resources(one)])


def kill(processes: list[psutil.Process]) -> None:
    """SIGKILL each. A process whose PID was given to another since is left alone."""
    for one in processes:
        with suppress(psutil.Error):
            one.kill()


def kill_descendants(seconds: float = 10.0, spare: int | None = None) -> list[int]:
    """SIGKILL every descendant until none is left; needs `adopt_orphans`, else grandchildren can slip away.

    Python's resource trackers end by themselves after those that they serve, and remove their shared memory then: they
    are killed only when they do not. Returns the PIDs that outlived `seconds`: processes in a driver's call.
    """
    began = time.monotonic()
    while left := tree():
        waited = time.monotonic() - began
        kill([one for one in left if waited > _TRACKER_SECONDS or not _tracks_resources(one)])
        reap(spare)
        if waited > seconds:
            return [one.pid for one in left]
        time.sleep(0.02)
    reap(spare)
    return []


def _tracks_resources(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def ending(returncode: int) -> str:
    """Say how a process ended, from Popen's `returncode`."""
    if returncode >= 0:
        return f"exit status {returncode}"
    with suppress(ValueError):
        sign = signal.Signals(-returncode)
        hint = " (the kernel's out-of-memory killer sends it too)" if sign == signal.SIGKILL else ""
        return f"signal {-returncode} {sign.name}{hint}"
    return f"signal {-returncode}"
