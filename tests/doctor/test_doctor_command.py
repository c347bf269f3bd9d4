"""`appliance doctor` and `preflight` as a whole: which checks, which words, which exit status."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance import cli
from appliance.acceleration import routes
from appliance.doctor import first_failure, preflight
from appliance.doctor.checks import host, libraries, peer, storage
from appliance.doctor.scope import likely, of_plan
from appliance.launch.request import Request
from appliance.launch.resolve import resolve
from appliance.paths import TOPOLOGIES
from appliance.topology import live, recorded
from appliance.topology.machine import Host, Machine

if TYPE_CHECKING:
    from appliance.launch.plan import Plan

FOUR = TOPOLOGIES / "4xv100-sxm2-16gb.json"
NONE = Machine("this machine", "NVML", host=Host(memory_bytes=64 * 2**30), notes=("no GPU can be seen: none; get one",))

EVERY_CHECK = [
    "plan", "driver", "gpus", "libcuda", "engine", "sm70_kernels",
    "torch", "extensions", "cuda13", "peer_access", "peer_data", "shm", "memory", "glibc", "clock",
    "state_dir", "run_dir", "models_dir", "disk_space", "model", "engine_port", "sidecar_port",
]  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GPUs and without settings in its environment, whose torch is not really asked."""
    for name in [name for name in os.environ if name.startswith("APPLIANCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(live, "detect", lambda: NONE)
    monkeypatch.setattr(libraries, "ask_torch", lambda: {"version": "2.10.0+cu128", "archs": "sm_70"})
    monkeypatch.setattr(libraries, "read_extensions", lambda _: {"_C": frozenset({"sm_70"})})
    monkeypatch.setattr(libraries, "engine_version", lambda _: "0.19.1")
    monkeypatch.setattr(routes, "NOT_BUILT", frozenset())


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """Folders and ports of this test alone."""
    with socket.socket() as one, socket.socket() as two:
        for free in (one, two):
            free.bind(("127.0.0.1", 0))
        numbers = [str(free.getsockname()[1]) for free in (one, two)]
    return ["--state-dir", str(tmp_path / "state"), "--port", numbers[0], "--sidecar-port", numbers[1]]


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = cli.main(["doctor", "--json", *words])
    return status, json.loads(capsys.readouterr().out)


def plan(options: list[str], machine: Machine = NONE, **more: str) -> Plan:
    given = {words[2:].replace("-", "_"): value for words, value in zip(options[::2], options[1::2], strict=True)}
    return resolve(Request(given | more, (), {}, machine, Path.cwd()))


def test_a_machine_without_gpus_passes(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    status, found = doctor(capsys, *options)
    assert status == 0
    assert found["ok"]
    assert [check["id"] for check in found["checks"]] == EVERY_CHECK
    statuses = {check["id"]: check["status"] for check in found["checks"]}
    assert {name for name, status in statuses.items() if status == "skipped"} == {
        "driver", "gpus", "libcuda", "sm70_kernels",
    "torch", "extensions", "cuda13", "peer_access", "peer_data"
    }  # fmt: skip
    assert set(found["checks"][0]) == {"id", "title", "status", "found", "wanted", "todo"}


def test_a_recorded_machine_of_four_v100(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    status, found = doctor(capsys, *options, "--topology", str(FOUR), "--profile", "qwen38_27b_nvfp4_dflash2")
    statuses = {check["id"]: check["status"] for check in found["checks"]}
    assert {name for name, status in statuses.items() if status == "fail"} <= {"disk_space"}
    assert "draft" in statuses
    assert (statuses["libcuda"], statuses["peer_data"]) == ("skipped", "skipped")
    assert status == (1 if statuses["disk_space"] == "fail" else 0)


def test_a_live_machine_copies_between_its_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    monkeypatch.setattr(live, "detect", lambda: replace(recorded.load(FOUR), source="NVML", notes=()))
    monkeypatch.setattr(peer, "try_copies", lambda chosen: {"gpus": 4, "pairs": [[0, 1, True, chosen != (0, 1, 2, 3)]]})
    status, found = doctor(capsys, *options, "--profile", "qwen38_27b_nvfp4_dflash2")
    wrong = next(check for check in found["checks"] if check["id"] == "peer_data")
    assert (status, wrong["status"], wrong["found"]) == (1, "fail", "wrong bytes came over 0→1")


def test_people_read_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    monkeypatch.setattr(host, "clock_source", lambda: "hpet")
    monkeypatch.setattr(storage, "free_bytes", lambda _: 1000)
    assert cli.main(["doctor", *options]) == 1
    shown = capsys.readouterr().out
    assert "ok    plan                  profile portable_smollm2: " in shown
    assert (
        "LOOK  clock                 clock source hpet; wanted CLOCK_BOOTTIME and a fast source such as tsc\n" in shown
    )
    assert "FAIL  disk space            0 MiB free in " in shown
    assert "→ free space there, or name a folder on a larger volume with APPLIANCE_MODELS_DIR" in shown
    assert shown.rstrip().endswith("11 fine, 1 to look at, 1 failed, 9 skipped")


def test_a_profile_that_does_not_fit_is_told_beside_why(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    status, found = doctor(capsys, *options, "--profile", "qwen38_27b_fp8_tp2")
    failed = {check["id"]: check for check in found["checks"] if check["status"] == "fail"}
    assert status == 1
    assert "it needs 2 GPUs and none is visible" in failed["plan"]["found"]
    assert failed["driver"] | {"wanted": ""} == failed["driver"] | {
        "found": "no GPU can be seen: none",
        "todo": "get one",
        "wanted": "",
    }
    assert {"plan", "driver", "gpus"} <= set(failed)


def test_a_broken_checkpoint_is_told_and_the_rest_is_checked(
    capsys: pytest.CaptureFixture[str], options: list[str], tmp_path: Path
) -> None:
    status, found = doctor(capsys, *options, "--model", str(tmp_path / "none"))
    assert status == 1
    assert [check["id"] for check in found["checks"] if check["status"] == "fail"] == ["plan"]
    assert found["checks"][0]["found"].startswith(f"{tmp_path}/none: does not exist; wanted the folder of a checkpoint")


@pytest.mark.parametrize("words", [["--port", "none"], ["--topology", "/does/not/exist"], ["unexpected"]])
def test_a_mistake_of_usage_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main(["doctor", *words]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_preflight_of_a_plan_that_can_start(options: list[str]) -> None:
    checks = preflight(plan(options))
    assert first_failure(checks) is None
    assert {check.id for check in checks} < set(EVERY_CHECK)


def test_preflight_starts_no_process(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    planned = plan(options, recorded.load(FOUR), profile="qwen38_27b_nvfp4_dflash2")
    monkeypatch.setattr("subprocess.Popen", pytest.fail)
    monkeypatch.setattr("subprocess.run", pytest.fail)
    assert {check.status for check in preflight(planned)} <= {"ok", "skipped", "fail"}


def test_preflight_finds_a_port_in_use(options: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(options[options.index("--port") + 1])))
        taken.listen()
        failure = first_failure(preflight(plan(options)))
    assert failure is not None
    assert failure.id == "engine_port"
    assert failure.line.endswith("; stop that, or choose another port with --port or APPLIANCE_PORT")


def test_preflight_says_which_routes_this_build_cannot_bind(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    every = frozenset(name for route in routes.ROUTES.values() for name in route.operators)
    monkeypatch.setattr(routes, "NOT_BUILT", every)
    planned = plan(options, recorded.load(FOUR), profile="qwen38_27b_nvfp4_dflash2")
    failure = first_failure(preflight(planned))
    assert failure is not None
    assert failure.line.startswith("SM70 kernels: this build binds none of attention_backend, e4m3_grouped_fp32, ")


def test_an_interrupted_download_needs_less_space(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    planned = plan(options, recorded.load(FOUR), profile="qwen38_27b_nvfp4_dflash2")
    needs = of_plan(planned).needs.disk_bytes
    monkeypatch.setattr(storage, "free_bytes", lambda _: needs - 1000)
    assert "disk_space" in {check.id for check in preflight(planned) if check.status == "fail"}
    folder = Path(planned.model.folder)
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True)
    (partial / "weights").write_bytes(bytes(1000))
    assert "disk_space" not in {check.id for check in preflight(planned) if check.status == "fail"}


def test_memory_counts_what_the_portable_engine_takes(options: list[str]) -> None:
    planned = plan(options)
    assert planned.memory is not None
    assert of_plan(planned).host_memory > planned.memory["kv_bytes"]


def test_without_a_plan_the_machine_decides_what_is_likely() -> None:
    def scope(machine: Machine, **given: str) -> tuple[str, int]:
        found = likely(Request(given, (), {}, machine, Path.cwd()))
        return found.engine, found.needs.gpus

    assert scope(NONE) == ("portable", 0)
    assert scope(recorded.load(FOUR))[0] == "v100"
    assert scope(NONE, profile="qwen38_27b_fp8_tp2") == ("v100", 2)
    assert scope(NONE, profile="qwen38_27b_fp8_tp3") == ("portable", 0)
    folders = likely(Request({"state_dir": "/s", "run_dir": "/r"}, (), {}, NONE, Path.cwd()))
    assert [str(folders.folder(name)) for name in ("state_dir", "run_dir", "models_dir")] == ["/s", "/r", "/s/models"]
    assert folders.settings["sidecar_host"] == folders.settings["host"]


def test_the_control_plane_stays_without_torch_and_without_the_hub() -> None:
    program = (
        "import sys, appliance.doctor.run, appliance.models.ensure\n"
        "import appliance.commands.doctor, appliance.commands.models\n"
        "print([name for name in ('torch', 'vllm', 'transformers', 'huggingface_hub', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
