"""What a result was taken on: profile, model, image, kernels, routes, topology, versions, out of the run directory."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import __version__, rundir
from appliance.bench.result import Clocks, Environment, Speculation, System
from appliance.errors import CheckError
from appliance.rundir import plugin_proof
from appliance.rundir.acceleration import AccelerationReport
from appliance.rundir.cache_start import CacheStart
from appliance.rundir.plan import PlannedCheckpoint, PlanRecord
from appliance.topology import islands
from appliance.topology.machine import machine_of

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN = "not told"

_SUFFIX = re.compile(r"-(FP8|NVFP4|AWQ|GPTQ|INT4|INT8|W4A16|W8A16|QUASAR|FP16|BF16)(?=-|$)", re.IGNORECASE)

_SHA256 = re.compile(r"[0-9a-f]{64}")


def family(repository: str) -> str:
    """Return a model's name without its owner and without what says how it is quantised: `Qwen3.8-27B`."""
    return _SUFFIX.sub("", repository.rsplit("/", 1)[-1])


def system(plan: Mapping[str, Any]) -> System:
    """Return what answers, as far as a plan tells it. An argument that nobody set is None, never vLLM's default."""
    if not plan:
        return System(hardware=UNKNOWN, gpus=0)
    record = PlanRecord.from_json(plan)
    model = record.model or PlannedCheckpoint()
    arguments = {name: sourced.value for name, sourced in (record.arguments or {}).items()}
    names = {gpu["index"]: gpu["name"] for gpu in record.planned_gpus}
    chosen = record.gpus or ()
    cards = sorted({names.get(index, UNKNOWN) for index in chosen})
    version = (record.versions or {}).get("vllm")
    return System(
        hardware=", ".join(cards) or processor(),
        gpus=len(chosen),
        tensor_parallel=arguments.get("tensor_parallel_size", 1),
        engine=f"vLLM {version} ({record.engine})" if version else f"vLLM ({record.engine})",
        repository=model.repository or None,
        revision=model.revision,
        quantization=model.kind,
        dtype=arguments.get("dtype"),
        kv_cache_dtype=arguments.get("kv_cache_dtype"),
        block_size=arguments.get("block_size"),
        max_num_batched_tokens=arguments.get("max_num_batched_tokens"),
        max_num_seqs=arguments.get("max_num_seqs"),
        prefix_caching=arguments.get("enable_prefix_caching"),
        attention=arguments.get("attention_backend"),
    )


def speculation(plan: Mapping[str, Any]) -> Speculation:
    """Return the speculation that a plan sets."""
    given = PlanRecord.from_json(plan).argument("speculative_config") or {}
    if not given:
        return Speculation()
    return Speculation(
        method=str(given.get("method", "not told")), tokens=int(given.get("num_speculative_tokens") or 0)
    )


def environment(plan: Mapping[str, Any], run_dir: Path, image: str | None, clocks: tuple[Clocks, ...]) -> Environment:
    """Return what the figures are taken on. `image` as a person names it, else what the entrypoint knew.

    Without a plan the run directory is another engine's and tells nothing.
    """
    if not plan:
        return Environment(appliance=__version__, image=image, clocks=clocks)
    record = PlanRecord.from_json(plan)
    report = AccelerationReport.read(run_dir) or AccelerationReport()
    # What the compile cache's key was made of, the image among it.
    known = (CacheStart.read(run_dir) or CacheStart()).parts or {}
    loaded = plugin_proof.of_role(run_dir, "api")
    proven = {"vllm": loaded.vllm, "torch": loaded.torch}
    versions = {**(record.versions or {}), **{name: version for name, version in proven.items() if version}}
    return Environment(
        appliance=__version__,
        image=image or _told(known.get("image")),
        kernel_sha256=_sha256(loaded.kernels),
        profile=record.profile,
        plan_sha256=plan_hash(plan),
        topology=topology(plan),
        driver=(record.machine or {}).get("driver"),
        versions=versions,
        routes=routes(report),
        clocks=clocks,
    )


def plan_hash(plan: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a plan's JSON with sorted keys."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def topology(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the planned machine in words, its GPUs first."""
    record = PlanRecord.from_json(plan)
    machine = record.machine
    if not machine:
        return ()
    gpus = [f"GPU{gpu['index']} {gpu['name']}" for gpu in machine["gpus"]] or [f"no GPU; {processor()}"]
    chosen = [f"used: {', '.join(f'GPU{index}' for index in record.gpus)}"] if record.gpus else []
    with suppress(KeyError, TypeError, ValueError):
        return (*gpus, *islands.describe(machine_of(machine)), *chosen)
    return (*gpus, *chosen)


def routes(report: AccelerationReport) -> dict[str, str]:
    """Return each acceleration route's state, with the reason where it is not enabled."""
    return {
        name: f"{route.state}: {route.reason}" if route.reason else str(route.state)
        for name, route in report.routes.items()
    }


def processor() -> str:
    """Return the CPU's name, as Linux tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return "unknown processor"


def needs_plan(plan: Mapping[str, Any], run_dir: Path, what: str) -> None:
    """Raise CheckError where there is no plan of an engine of ours."""
    if not plan:
        raise CheckError(
            f"{run_dir} holds no {rundir.PLAN} of that engine: {what} needs the run directory of a running "
            "`appliance serve`; name it with --run-dir"
        )


def _told(value: object) -> str | None:
    return str(value) if value and value not in ("none", "source") else None


def _sha256(value: object) -> str | None:
    return value if isinstance(value, str) and _SHA256.fullmatch(value) else None
