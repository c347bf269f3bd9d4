"""The exec probes as programs: one JSON line, the exit status, no site-packages, and the same answer in words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from appliance import cli, paths, rundir

if TYPE_CHECKING:
    from pathlib import Path

PROBES = ("startup", "live", "ready")


def write_engine(folder: Path, phase: str, **changes: Any) -> None:
    now = rundir.clock()
    record = {
        "phase": phase,
        "started": now - 30,
        "since": now - 10,
        "at": now,
        "budget_s": 900,
        "stall_grace_s": 120,
        "models": ["smol"],
        "plugins": {"api": True, "core": True},
    }
    rundir.write(folder, rundir.PHASE, record | changes)
    rundir.write(folder, rundir.HEARTBEAT, {"at": now, "step": 1, "step_at": now})
    rundir.write(folder, rundir.PLAN, {"expected_acceleration": []})


def run(probe: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [paths.ROOT / "healthchecks" / probe, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], **environment},
        cwd="/",
    )


@pytest.mark.parametrize("probe", PROBES)
def test_a_ready_engine_passes_every_probe(probe: str, tmp_path: Path) -> None:
    write_engine(tmp_path, "ready")
    done = run(probe, APPLIANCE_RUN_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    answer = json.loads(done.stdout)
    assert (answer["probe"], answer["status"], answer["phase"]) == (probe, "ok", "ready")
    assert answer["reason"].startswith("idle, last step ")


@pytest.mark.parametrize(("probe", "status"), [("startup", 1), ("live", 0), ("ready", 1)])
def test_a_loading_engine_is_only_alive(probe: str, status: int, tmp_path: Path) -> None:
    write_engine(tmp_path, "loading", progress="shards 3/12")
    done = run(probe, APPLIANCE_RUN_DIR=str(tmp_path))
    assert done.returncode == status
    answer = json.loads(done.stdout)
    assert answer["status"] == ("failed" if status else "ok")
    # The probe is a process of its own, which a busy machine starts late.
    assert re.fullmatch(r"loading for [3-9]\d s of at most 900 s: shards 3/12", answer["reason"])
    assert answer["budget_s"] == 900


@pytest.mark.parametrize("probe", PROBES)
def test_no_run_directory_fails_every_probe(probe: str, tmp_path: Path) -> None:
    done = run(probe, APPLIANCE_RUN_DIR=str(tmp_path / "none"))
    assert (done.returncode, done.stderr) == (1, "")
    assert "phase.json is missing" in json.loads(done.stdout)["reason"]


@pytest.mark.parametrize("probe", PROBES)
def test_arguments_are_wrong_usage(probe: str) -> None:
    done = run(probe, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"usage: healthchecks/{probe}   (no arguments; APPLIANCE_RUN_DIR names the run directory)\n"


@pytest.mark.parametrize("probe", PROBES)
def test_it_needs_the_standard_library_only(probe: str, tmp_path: Path) -> None:
    """A container's Python has none of our dependencies, and PYTHON* variables of the engine must not matter."""
    program = paths.ROOT / "healthchecks" / probe
    assert program.read_text().startswith("#!/usr/bin/env -S python3 -IS\n")
    listing = f"import runpy, sys\nsys.argv = [{str(program)!r}]\ntry: runpy.run_path({str(program)!r})\n"
    listing += "except SystemExit: print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", listing],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"APPLIANCE_RUN_DIR": str(tmp_path), "PYTHONPATH": "/nowhere"},
    )
    loaded = set(done.stderr.split())
    assert loaded - set(sys.stdlib_module_names) - set(sys.builtin_module_names) <= {"appliance", "__main__"}


def test_the_command_says_it_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_engine(tmp_path, "loading")
    assert cli.main(["probe", "live", "--run-dir", str(tmp_path)]) == 0
    assert cli.main(["probe", "ready", "--run-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "live: yes, loading: loading for 30 s of at most 900 s",
        "ready: no, loading: loading for 30 s of at most 900 s",
    ]


def test_the_command_gives_the_same_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_engine(tmp_path, "dead", reason="the engine ended by itself with SIGKILL")
    assert cli.main(["probe", "ready", "--run-dir", str(tmp_path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(run("ready", APPLIANCE_RUN_DIR=str(tmp_path)).stdout)


def test_the_command_reads_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_engine(tmp_path, "ready")
    monkeypatch.setenv("APPLIANCE_RUN_DIR", str(tmp_path))
    assert cli.main(["probe", "ready"]) == 0
    assert capsys.readouterr().out.startswith("ready: yes, ready: idle, last step ")


def test_an_unknown_probe_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["probe", "steady"])
    assert end.value.code == 2
    assert "invalid choice: 'steady'" in capsys.readouterr().err
