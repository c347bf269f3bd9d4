"""The host around the GPUs: CPUs and memory that this process may use, and /dev/shm. Linux only; needs no root."""

from __future__ import annotations

import math
import os
from pathlib import Path

from appliance.topology.machine import Host

_UNLIMITED = 2**60
"""cgroup v1 writes "no limit" as the largest multiple of the page size, near 2**63."""


def read(root: Path = Path("/")) -> Host:
    """Return what /proc, /sys/fs/cgroup and /dev/shm under `root` tell; what cannot be read is None."""
    cpus = len(os.sched_getaffinity(0))
    quota = _cpu_quota(root)
    return Host(
        cpus=cpus if quota is None else max(1, min(cpus, math.ceil(quota))),
        memory_bytes=_memory_total(root),
        cgroup_memory_bytes=_memory_limit(root),
        shm_bytes=_shm(root),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _memory_total(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        words = line.split()
        if words[:1] == ["MemTotal:"] and len(words) > 1 and words[1].isdigit():
            return int(words[1]) * 1024  # /proc/meminfo counts KiB
    return None


def _shm(root: Path) -> int | None:
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return status.f_frsize * status.f_blocks


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Return this process's folders under v2 and under v1 `controller`, each followed by its parents up to the mount.

    A parent's limit binds as well. In a container the path may be the host's and absent here: then only the
    mount itself, which is the container's own cgroup, answers.
    """
    folders: list[Path] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        steps = [step for step in path.split("/") if step not in ("", "..")]
        folders += [mount.joinpath(*steps[:depth]) for depth in range(len(steps), -1, -1)]
    return folders


def _memory_limit(root: Path) -> int | None:
    limits = [
        int(text)
        for folder in _cgroup_folders(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _text(folder / name)).isdigit()
    ]
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def _cpu_quota(root: Path) -> float | None:
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        # "max 100000" or "QUOTA PERIOD", both in microseconds
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)
