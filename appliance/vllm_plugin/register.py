"""vLLM's general plugin: loaded in every process of the engine, and the proof of it left in the run directory."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import multiprocessing
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

import appliance
from appliance import rundir
from appliance.rundir.cache_start import CacheStart
from appliance.rundir.plan import PlanRecord
from appliance.rundir.plugin_proof import PluginProof
from appliance.vllm_plugin.sm70 import activate, platform_choice, routes

SERVER = "appliance.vllm_plugin.server.serve"
"""The program whose main process is the API server."""

SPAWNED = {"EngineCore": "core", "VllmWorker": "worker"}
"""How vLLM names the processes that it spawns."""

logger = logging.getLogger("vllm.appliance.plugin")


def choose_platform() -> str | None:
    """Return the path of our platform class, or None: vLLM's platform plugin, asked before anything else."""
    return platform_choice.chosen()


@functools.cache
def register() -> None:
    """Do this process's part, once. What fails is told in the proof: vLLM would log it and serve on without it.

    Raises PlatformError where this machine needs our platform and vLLM took another; vLLM lets that pass.
    """
    activate.activate_if_chosen()
    role = process_role()
    configured = os.environ.get("APPLIANCE_RUN_DIR")
    if role is None or not configured:
        # Some other user of the vLLM in this environment.
        return
    run_dir = Path(configured)
    proof = PluginProof(os.getpid(), role, rundir.clock())
    try:
        proof = PluginProof.from_json(proof.to_json() | versions())
        if role == "api":
            proof = replace(proof, kernels=_publish_routes(run_dir))
    except Exception as error:
        logger.exception("The appliance's plugin failed in the %s process", role)
        proof = replace(proof, error=f"{type(error).__name__}: {error}")
    try:
        proof.write(run_dir)
    except OSError as error:
        logger.error("The proof that the plugin is loaded cannot be written: %s", error)


def process_role() -> str | None:
    """Return api, core or worker; None in a process that serves no appliance."""
    if multiprocessing.parent_process() is None:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        return "api" if spec is not None and spec.name == SERVER else None
    name = multiprocessing.current_process().name
    return next((role for prefix, role in SPAWNED.items() if name.startswith(prefix)), None)


def versions() -> dict[str, str]:
    """Return the versions that are at work in this process, and the hash of the engine's sources."""
    import vllm

    return {
        "appliance": appliance.__version__,
        "vllm": str(vllm.__version__),
        "python": platform.python_version(),
        "source": source_hash(),
    }


def source_hash() -> str:
    """Return the SHA-256 over names and contents of the plugin's modules: a version alone is no evidence."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _publish_routes(run_dir: Path) -> str | None:
    """Write acceleration.json. Returns the hash of the kernels' sources where there are both they and CUDA."""
    from vllm.platforms import current_platform

    plan, cache = PlanRecord.read(run_dir) or PlanRecord(), CacheStart.read(run_dir)
    cuda = bool(current_platform.is_cuda())
    ours = cuda or type(current_platform).__module__.startswith("appliance.")
    report = routes.before_load(active=ours, plan=plan, environment=os.environ, cache=cache)
    rundir.write(run_dir, rundir.ACCELERATION, report)
    if not cuda or importlib.util.find_spec("sm70_kernels") is None:
        return None
    from sm70_kernels import registry

    return str(registry.source_hash())
