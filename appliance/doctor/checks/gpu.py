"""Driver, GPUs, and the library through which programs reach them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.doctor.check import Check
from appliance.launch.request import LIVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.topology.machine import Gpu, Machine

NO_GPU = "the profile needs no GPU"


def driver(version: str | None, notes: Sequence[str], needed: int, low: int | None, high: int | None) -> Check:
    """Judge the driver's branch against `low` to `high` (major versions); `needed` is the number of GPUs.

    `notes` are the machine's, which say why there is no driver.
    """
    name, title = "driver", "NVIDIA driver"
    if needed == 0:
        return Check(name, title, "skipped", NO_GPU)
    wanted = _range(low, high)
    if version is None:
        found, _, todo = (notes[0] if notes else "no driver answers").partition("; ")
        return Check(name, title, "fail", found, wanted, todo or "install the NVIDIA driver and start again")
    major = version.partition(".")[0]
    branch = int(major) if major.isdigit() else None
    if branch is None:
        return Check(name, title, "warn", f"{version}, which has no branch", wanted, "compare it by hand")
    if low is not None and branch < low:
        return Check(name, title, "fail", version, wanted, f"install a driver of branch {high or low}")
    if high is not None and branch > high:
        todo = f"install a driver of branch {high}, the last one that supports Volta"
        return Check(name, title, "fail", version, wanted, todo)
    return Check(name, title, "ok", version, wanted)


def _range(low: int | None, high: int | None) -> str:
    if low is None and high is None:
        return "any branch"
    if low is None or high is None:
        return f"branch {low} or newer" if high is None else f"branch {high} or older"
    return f"branch {low} to {high}"


def gpus(machine: Machine, needed: int, chosen: Sequence[int]) -> Check:
    """Judge whether NVML shows the GPUs and whether each chosen one can be computed on."""
    name, title = "gpus", "GPUs"
    if needed == 0:
        return Check(name, title, "skipped", NO_GPU)
    wanted = f"{needed} GPUs"
    found = ", ".join(f"{gpu.index} {gpu.name}" for gpu in machine.gpus) or "none"
    if len(machine.gpus) < needed:
        found, _, todo = (machine.notes[0] if machine.notes else f"{found}").partition("; ")
        todo = todo or "choose a profile for fewer GPUs with --profile, or hand more GPUs to the container"
        return Check(name, title, "fail", found, wanted, todo)
    used = [gpu for gpu in machine.gpus if gpu.index in chosen] if chosen else list(machine.gpus)
    for gpu in used:
        if trouble := _unusable(gpu):
            return Check(name, title, "fail", f"GPU {gpu.index} {trouble[0]}", wanted, trouble[1])
    # The notes of a recording tell where it comes from.
    if machine.source == LIVE and machine.notes:
        first, _, todo = machine.notes[0].partition("; ")
        return Check(name, title, "warn", f"{found}; {first}", wanted, todo or "see `appliance topology`")
    return Check(name, title, "ok", found, wanted)


def _unusable(gpu: Gpu) -> tuple[str, str] | None:
    if gpu.mig:
        return "is split by MIG", f"`nvidia-smi -i {gpu.index} -mig 0` as root makes it whole"
    if gpu.compute_mode == "Prohibited":
        return "is in compute mode Prohibited", f"`nvidia-smi -i {gpu.index} -c 0` as root allows programs on it"
    return None


def libcuda(needed: int, resolved: Sequence[Path] | None) -> Check:
    """Judge the libcuda.so.1 that programs would load: the first of `resolved`, None where it cannot be asked.

    A cuda-compat library in the loader's way takes the driver's place and fails with Error 803 on newer drivers.
    """
    name, title, wanted = "libcuda", "CUDA driver library", "the driver's own libcuda.so.1"
    if needed == 0:
        return Check(name, title, "skipped", NO_GPU)
    if resolved is None:
        return Check(name, title, "skipped", "ldconfig is not there to ask")
    if not resolved:
        todo = (
            "install the driver; in a container hand the GPUs over (`--gpus all`, or CDI) with the compute capability"
        )
        return Check(name, title, "fail", "no libcuda.so.1 in the loader's path", wanted, todo)
    for path in resolved:
        if any(part.startswith(("compat", "cuda-compat")) for part in path.parts):
            todo = "take its folder out of /etc/ld.so.conf.d and LD_LIBRARY_PATH (it gives Error 803)"
            return Check(name, title, "fail", f"{path} of cuda-compat is in the loader's path", wanted, todo)
    return Check(name, title, "ok", str(resolved[0]), wanted)


def resolved_libcuda() -> list[Path] | None:
    """Return every libcuda.so.1 that the loader would look at, in its order; None without ldconfig."""
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    first = [folder / "libcuda.so.1" for folder in folders if (folder / "libcuda.so.1").exists()]
    try:
        path = f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin"
        listed = subprocess.run(
            ["ldconfig", "-p"],  # noqa: S607 - where ldconfig is differs between distributions
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PATH": path, "LC_ALL": "C"},
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return first or None
    return first + parse_ldconfig(listed)


def parse_ldconfig(listed: str) -> list[Path]:
    """Return the 64-bit libcuda.so.1 entries of `ldconfig -p`, in order."""
    entries = (line.strip().partition(" => ") for line in listed.splitlines())
    return [Path(path) for name, _, path in entries if name.startswith("libcuda.so.1 ") and "x86-64" in name]
