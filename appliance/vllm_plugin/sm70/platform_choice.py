"""Which platform class of ours vLLM should take in this process, if any. Imports neither torch nor vLLM."""

from __future__ import annotations

import os
from importlib import metadata

from appliance.acceleration import platforms

SETTING = platforms.VARIABLE
"""Environment: names the platform, for tests and rehearsals on a machine without a GPU of capability 7.0."""

SM70 = "appliance.vllm_plugin.sm70.platform.Sm70Platform"
REFERENCE = "appliance.vllm_plugin.sm70.reference_platform.Sm70ReferencePlatform"

BY_NAME = {platforms.SM70: SM70, platforms.REFERENCE: REFERENCE}


class PlatformError(RuntimeError):
    """vLLM would serve on another platform than this machine needs; one line."""


def choose(named: str | None, *, cpu_build: bool, capability: tuple[int, int] | None) -> str | None:
    """Return the path of our platform class; None where vLLM's own choice stands.

    `capability` is that of the first visible GPU, None without one. Raises PlatformError for a name that is unknown.
    """
    if named and named != platforms.AUTO:
        if named not in BY_NAME:
            raise PlatformError(f"{SETTING}={named} names no platform: it takes {platforms.AUTO}, {', '.join(BY_NAME)}")
        return BY_NAME[named]
    return SM70 if capability == platforms.VOLTA and not cpu_build else None


def chosen() -> str | None:
    """Return the choice for this process. Raises PlatformError like `choose`."""
    cpu_build = is_cpu_build()
    return choose(os.environ.get(SETTING), cpu_build=cpu_build, capability=None if cpu_build else first_capability())


def is_cpu_build() -> bool:
    """Say whether the vLLM that is installed is the one for CPUs, which takes no GPU."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return True


def first_capability() -> tuple[int, int] | None:
    """Return the compute capability of the first visible GPU without making a CUDA context; None without one."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        first = "0" if visible is None else visible.split(",")[0].strip()
        if not first or first == "-1":
            return None
        by_number = first.isdigit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(first)) if by_number else pynvml.nvmlDeviceGetHandleByUUID(first)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return int(major), int(minor)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
