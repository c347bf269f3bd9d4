"""The plugin's proof, its role, and the routes it reports, in processes that have no vLLM."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

import appliance
from appliance import rundir
from appliance.acceleration.routes import NOT_BUILT, ROUTES
from appliance.rundir import plugin_proof
from appliance.rundir.plan import PlanRecord
from appliance.vllm_plugin import register as plugin
from appliance.vllm_plugin.sm70.routes import before_load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A stand-in for vLLM on a machine without CUDA, in a process that counts as the API server."""
    vllm, platforms = types.ModuleType("vllm"), types.ModuleType("vllm.platforms")
    vllm.__version__ = "0.19.1"  # type: ignore[attr-defined]
    platforms.current_platform = types.SimpleNamespace(is_cuda=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(plugin, "process_role", lambda: "api")
    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(tmp_path))
    plugin.register.cache_clear()
    yield platforms
    plugin.register.cache_clear()


def proofs(folder: Path) -> list[dict[str, Any]]:
    return [proof.to_json() for proof in plugin_proof.read_all(folder)]


def test_a_proof_says_who_and_what(engine: Any, tmp_path: Path) -> None:
    plugin.register()
    (left,) = proofs(tmp_path)
    assert left.keys() == {"pid", "role", "at", "appliance", "vllm", "python", "source"}
    assert (left["role"], left["appliance"], left["vllm"]) == ("api", appliance.__version__, "0.19.1")
    assert left["source"] == plugin.source_hash()
    assert len(left["source"]) == 64
    assert plugin_proof.proven(tmp_path, {left["pid"]}) == {"api": True, "core": False}


def test_it_acts_once(engine: Any, tmp_path: Path) -> None:
    plugin.register()
    rundir.clear(tmp_path)
    plugin.register()
    assert proofs(tmp_path) == []


def test_the_api_process_reports_the_routes(engine: Any, tmp_path: Path) -> None:
    rundir.write(tmp_path, rundir.PLAN, {"profile": "portable_smollm2", "expected_acceleration": []})
    plugin.register()
    report = rundir.read(tmp_path, rundir.ACCELERATION)
    assert report is not None
    assert report["profile"] == "portable_smollm2"
    assert {route["state"] for route in report["routes"].values()} == {"not_applicable"}


def test_an_engine_on_cuda_proves_its_kernels(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sm70_kernels import registry

    engine.current_platform.is_cuda = lambda: True
    plugin.register()
    assert [left["kernels"] for left in proofs(tmp_path)] == [registry.source_hash()]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    plugin.register.cache_clear()
    plugin.register()
    assert not any("kernels" in left for left in proofs(tmp_path)), "without the package there is nothing to prove"


def test_other_processes_leave_the_report_alone(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "process_role", lambda: "core")
    plugin.register()
    assert rundir.read(tmp_path, rundir.ACCELERATION) is None
    assert [left["role"] for left in proofs(tmp_path)] == ["core"]


def test_what_fails_is_told_and_proves_nothing(engine: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> bool:
        raise RuntimeError("no platform")

    engine.current_platform.is_cuda = broken
    with caplog.at_level(logging.ERROR, logger="vllm.appliance.plugin"):
        plugin.register()
    (left,) = proofs(tmp_path)
    assert left["error"] == "RuntimeError: no platform"
    assert plugin_proof.proven(tmp_path, {left["pid"]}) == {"api": False, "core": False}
    assert plugin_proof.errors(tmp_path) == [f"api (pid {left['pid']}): RuntimeError: no platform"]
    assert "The appliance's plugin failed in the api process" in caplog.text


def test_an_unwritable_run_directory_only_costs_the_proof(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(file))
    with caplog.at_level(logging.ERROR, logger="vllm.appliance.plugin"):
        plugin.register()
    assert "The proof that the plugin is loaded cannot be written" in caplog.text


@pytest.mark.parametrize("without", ["role", "run directory"])
def test_other_users_of_vllm_are_left_alone(
    without: str, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "role":
        monkeypatch.setattr(plugin, "process_role", lambda: None)
    else:
        monkeypatch.delenv("APPLIANCE_RUN_DIR")
    plugin.register()
    assert list(tmp_path.iterdir()) == []


ROLE = """
import multiprocessing
from appliance.vllm_plugin.register import process_role

def tell():
    print(process_role(), flush=True)

if __name__ == "__main__":
    tell()
    for name in ("EngineCore", "EngineCore_DP0", "VllmWorker-3", "Process-1"):
        child = multiprocessing.get_context("spawn").Process(target=tell, name=name)
        child.start()
        child.join()
"""


def test_roles_are_told_from_the_names_that_vllm_gives(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ROLE)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=110)
    assert done.stdout.split() == ["None", "core", "core", "worker", "None"]


def test_the_signal_dumps_all_threads_and_lets_the_process_live() -> None:
    code = (
        "import os, threading, time\n"
        "from appliance.vllm_plugin import stack_dump\n"
        "stack_dump.dump_on_signal()\nstack_dump.dump_on_signal()\n"
        "there = threading.Event()\n"
        "def waiting_for_a_step(): there.set(); time.sleep(60)\n"
        "threading.Thread(target=waiting_for_a_step, daemon=True).start()\n"
        "there.wait()\nos.kill(os.getpid(), stack_dump.SIGNAL)\nprint('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "alive\n"
    assert done.stderr.count("most recent call first") == 2
    assert "in waiting_for_a_step" in done.stderr


class TestRoutesOnCuda:
    """Before a rank has spoken the report must claim no kernel, and name the operators that no card has."""

    def report(self, plan: dict[str, Any] | None = None, **environment: str) -> dict[str, Any]:
        return before_load(active=True, plan=PlanRecord.from_json(plan), environment=environment)

    def test_every_kernel_route_is_missing(self) -> None:
        routes = self.report()["routes"]
        reasons = {
            name: route["reason"] for name, route in routes.items() if name not in ("compile_graph", "compile_cache")
        }
        lacking = {name: [each for each in ROUTES[name].operators if each in NOT_BUILT] for name in reasons}
        assert reasons == {
            name: f"operator_missing:{names[0]}" if names else "not_reported" for name, names in lacking.items()
        }
        assert len(reasons) == len(ROUTES) - 2
        assert reasons["nvfp4_dense"] == "operator_missing:dense_w4a16"

    def test_expected_ones_are_counted_as_missing(self) -> None:
        report = self.report({"profile": "qwen38", "expected_acceleration": ["all_reduce", "compile_graph"]})
        assert (report["enabled"], report["expected"]) == (1, 2)
        assert report["missing"] == {"all_reduce": "operator_missing:all_reduce_push"}

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("profile qwen38", "enforce_eager=True≠False"),
            ("vllm options", "user_override"),
            ("environment APPLIANCE_ENFORCE_EAGER", "user_override"),
        ],
    )
    def test_eager_execution_is_told_with_who_wanted_it(self, source: str, reason: str) -> None:
        plan = {"arguments": {"enforce_eager": {"value": True, "source": source}}}
        route = self.report(plan)["routes"]["compile_graph"]
        assert (route["state"], route["reason"], route["source"]) == ("disabled", reason, source)

    def test_the_compile_cache_can_be_switched_off(self) -> None:
        assert self.report(VLLM_DISABLE_COMPILE_CACHE="0")["routes"]["compile_cache"]["state"] == "enabled"
        route = self.report(VLLM_DISABLE_COMPILE_CACHE="1")["routes"]["compile_cache"]
        assert (route["reason"], route["source"]) == (
            "compile_cache_disabled",
            "environment VLLM_DISABLE_COMPILE_CACHE",
        )

    def test_it_is_json(self) -> None:
        assert json.loads(json.dumps(self.report()))["schema"] == 1
