"""The statistics and the exit status of the control plane's benchmark, with commands that cost nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bench import control_plane, sidecar
from appliance.bench.control_plane import Case, Timing
from appliance.bench.sidecar import Figure
from appliance.errors import CheckError

if TYPE_CHECKING:
    from pathlib import Path

FOREVER_S = 3600.0
NEVER_S = 0.0


@pytest.fixture(autouse=True)
def idle_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test takes every core."""
    monkeypatch.setattr(control_plane.main, "__defaults__", (None, None, lambda *_: [Figure("idle", 1.0, "B", 2.0)]))


def case(code: str, limit_s: float = FOREVER_S, name: str = "fake") -> Case:
    return Case(name, (sys.executable, "-S", "-c", code), limit_s)


def timing(seconds: float, *, within: bool = True, name: str = "appliance plan") -> Timing:
    return Timing(name, 3, seconds, seconds * 2, 0.05, 0.4, within)


def test_the_warm_up_is_run_but_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([(9.0, 8.0), (0.3, 0.1), (0.1, 0.1), (0.2, 0.15)])
    monkeypatch.setattr(control_plane, "_once", lambda case, environment: next(took))
    measured = control_plane.measure(case("", limit_s=0.2), 3, {})
    assert (measured.median_s, measured.max_s, measured.cpu_s, measured.runs) == (0.2, 0.3, 0.1, 3)
    assert measured.within


def test_a_median_over_the_limit_is_over_whatever_the_fastest_run_took(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([(0.0, 0.0), (0.1, 0.1), (0.5, 0.1), (0.6, 0.1)])
    monkeypatch.setattr(control_plane, "_once", lambda case, environment: next(took))
    assert not control_plane.measure(case("", limit_s=0.4), 3, {}).within


def test_every_run_is_a_process_and_is_prepared_before_it(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def prepare() -> None:
        with log.open("a") as out:
            out.write("prepared\n")

    command = (sys.executable, "-S", "-c", f"open({str(log)!r}, 'a').write('ran\\n')")
    control_plane.measure(Case("fake", command, FOREVER_S, prepare), 2, {})
    assert log.read_text().split() == ["prepared", "ran"] * 3


def test_exit_status_is_0_when_every_command_is_within_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert control_plane.main(["--runs", "1"], [case("")]) == 0
    assert "over" not in capsys.readouterr().out


def test_exit_status_is_1_and_the_row_is_marked_when_one_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert control_plane.main(["--runs", "1"], [case("", name="good"), case("", NEVER_S, name="slow")]) == 1
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert rows["slow"].endswith("over")
    assert not rows["good"].endswith("over")


def test_a_command_that_fails_ends_the_benchmark_with_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('first', file=sys.stderr); sys.exit('no such topology')"
    assert control_plane.main(["--runs", "1"], [case(code, name="appliance plan")]) == 1
    assert capsys.readouterr().err == (
        "appliance: `appliance plan` ended with status 1 instead of 0: no such topology\n"
    )


def test_a_silent_failure_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert control_plane.main(["--runs", "1"], [case("raise SystemExit(3)")]) == 1
    assert capsys.readouterr().err == "appliance: `fake` ended with status 3 instead of 0: it said nothing\n"


def test_a_command_that_hangs_is_killed_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_plane, "TIMEOUT_S", 0.2)
    assert control_plane.main(["--runs", "1"], [case("import time; time.sleep(60)")]) == 1
    assert capsys.readouterr().err == "appliance: `fake` has not ended after 0.2 s; run it alone to see why\n"


def test_a_command_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "probe")
    assert control_plane.main(["--runs", "1"], [Case("fake", (missing,), FOREVER_S)]) == 1
    assert capsys.readouterr().err == (f"appliance: `fake` cannot be started: No such file or directory: {missing}\n")


def test_json_holds_every_timing(capsys: pytest.CaptureFixture[str]) -> None:
    assert control_plane.main(["--json", "--runs", "2"], [case(""), case("", NEVER_S, name="slow")]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == 1
    assert record["within"] is False
    assert [(t["name"], t["runs"], t["within"]) for t in record["timings"]] == [("fake", 2, True), ("slow", 2, False)]
    assert all(0 < t["median_s"] <= t["max_s"] and t["cpu_s"] > 0 for t in record["timings"])


def test_the_table_is_aligned() -> None:
    rows = control_plane.table([timing(0.25), timing(1.5, within=False, name="healthchecks/ready")]).splitlines()
    assert rows[0].split() == ["command", "median", "max", "processor", "limit"]
    assert rows[1].replace(" s", "").split() == ["appliance", "plan", "0.250", "0.500", "0.050", "0.400"]
    assert rows[2].endswith("over")
    ends = {row.rindex(" s") for row in rows[1:]}
    assert ends == {rows[0].index("limit") + len("limit") - len(" s")}


@pytest.mark.parametrize("runs", ["0", "-1", "2.5", "many"])
def test_a_senseless_number_of_runs_is_bad_usage(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        control_plane.main(["--runs", runs], [])
    assert ended.value.code == 2
    assert "--runs" in capsys.readouterr().err


def test_the_callers_settings_do_not_reach_the_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("APPLIANCE_PROFILE", "portable_smollm2")
    monkeypatch.setenv("LANG", "C.UTF-8")
    environment = control_plane.environment(tmp_path)
    assert "APPLIANCE_PROFILE" not in environment
    assert environment["APPLIANCE_RUN_DIR"] == str(tmp_path)
    assert environment["LANG"] == "C.UTF-8"


def test_the_sidecars_figures_are_told_and_count(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [Figure("p99", 0.0301, "s", 0.02), Figure("max", 9.0, "s"), Figure("memory", 62.5e6, "B", 120e6)]
    assert control_plane.main(["--runs", "1"], [case("")], lambda *_: figures) == 1
    rows = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert [row.split() for row in rows] == [
        ["figure", "value", "limit"],
        ["p99", "30.1", "ms", "20.0", "ms", "over"],
        ["max", "9000.0", "ms"],
        ["memory", "62.5", "MB", "120.0", "MB"],
    ]
    assert control_plane.main(["--runs", "1", "--json"], [case("")], lambda *_: figures[1:]) == 0
    told = json.loads(capsys.readouterr().out)["figures"]
    assert told[0] == {"name": "max", "value": 9.0, "unit": "s", "limit": None, "within": True}


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_quantiles_are_values_that_were_taken(share: float, value: int) -> None:
    assert sidecar.quantile([float(n) for n in range(1, 101)], share) == value


def test_memory_is_the_kernels_word() -> None:
    assert sidecar.memory("Name:\tx\nVmHWM:\t   64000 kB\nVmRSS:\t   61035 kB\n") == (61035 * 1024, 64000 * 1024)


def test_a_sidecar_that_does_not_start_is_told(tmp_path: Path) -> None:
    environment = {**control_plane.environment(tmp_path), "APPLIANCE_SIDECAR_PROT": "1"}
    with pytest.raises(CheckError, match="the sidecar ended with status 2: appliance: environment: no setting"):
        sidecar.measure(tmp_path, 1, environment)


def test_the_real_sidecar_is_measured_and_nothing_is_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    popen = subprocess.Popen

    def kept(*command: Any, **more: Any) -> subprocess.Popen[Any]:
        started.append(popen(*command, **more))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", kept)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    figures = {figure.name: figure for figure in sidecar.measure(tmp_path, 8, control_plane.environment(tmp_path))}
    assert figures["sidecar health, every core busy, p99"].limit == 0.02
    assert 1e7 < figures["sidecar resident memory"].value <= figures["sidecar resident memory, peak"].value < 120e6
    assert all(figure.value > 0 for figure in figures.values())
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)
