"""A run directory in any state, and the sidecar's application over it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from appliance import paths
from appliance.bench import run_directory
from appliance.health import rundir
from appliance.launch.plan import Plan, PlannedModel, Sourced
from appliance.sidecar.app import create_app
from appliance.topology import recorded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def put(run_dir: Path, plan: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """Write the records of a ready engine as of now, with changes: put(heartbeat={"running": 0}, plan=None)."""

    def write(**changes: dict[str, Any] | None) -> None:
        names = {"phase": rundir.PHASE, "heartbeat": rundir.HEARTBEAT}
        names |= {"plan": rundir.PLAN, "acceleration": rundir.ACCELERATION}
        records = run_directory.ready(rundir.clock())
        records[rundir.PLAN] = plan() | {"expected_acceleration": list(run_directory.EXPECTED)}
        for short, name in names.items():
            change = changes.get(short, {})
            (run_dir / name).unlink(missing_ok=True)
            if change is not None:
                rundir.write(run_dir, name, records[name] | change)

    return write


@pytest.fixture
def get(run_dir: Path) -> Callable[..., httpx.Response]:
    """Ask the application over `run_dir`."""
    transport = httpx.ASGITransport(create_app(run_dir), raise_app_exceptions=False)

    async def ask(path: str, method: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            return await client.request(method, path)

    return lambda path, method="GET": asyncio.run(ask(path, method))


@pytest.fixture
def plan() -> Callable[..., dict[str, Any]]:
    """Make plan.json's record, every field filled: plan(topology="none", folder="/models/m")."""
    return lambda topology="8xv100-dgx1", folder="/nowhere/model": _plan(topology, folder).to_json()


def _plan(topology: str, folder: str) -> Plan:
    machine = recorded.load(paths.TOPOLOGIES / f"{topology}.json")
    model = PlannedModel("download", folder, "Qwen/Qwen3.8-27B-FP8", "a" * 40, "fp8_block", {}, "profile p")
    draft = PlannedModel("folder", f"{folder}-draft", "z-lab/draft", None, "unquantized", {}, "command line")
    return Plan(
        profile="p",
        title="Qwen3.8-27B on four V100s",
        engine="v100",
        served_model_name="qwen3.8-27b",
        gpus=(0, 1, 2, 3),
        settings={"host": Sourced("0.0.0.0", "environment APPLIANCE_HOST"), "port": Sourced(9000, "command line")},
        arguments={"max_model_len": Sourced(32768, "vllm options")},
        passthrough=("--max-model-len", "32768"),
        command=("python", "-m", "appliance.engine.serve"),
        environment={"HOME": Sourced("/state/home", "derived: one folder")},
        model=model,
        draft=draft,
        expected_acceleration=("compile_graph",),
        health={"start": 900, "progress": 300, "stall_grace": 120, "drain": 30},
        memory={"weights": 7_000_000_000},
        selection={"chosen": "p", "candidates": []},
        machine=machine.to_json(),
        versions={"vllm": "0.19.1", "torch": "2.10.0"},
        warnings=("a warning",),
    )
