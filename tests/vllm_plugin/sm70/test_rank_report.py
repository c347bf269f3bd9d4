"""The report of a rank: counts while it runs and when it ends, whatever ends it; and how it becomes the whole's."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from appliance import rundir
from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import ROUTES
from appliance.vllm_plugin.server.acceleration_endpoint import ranks
from appliance.vllm_plugin.sm70 import rank_report
from appliance.vllm_plugin.sm70.counters import COUNTERS, Counters
from appliance.vllm_plugin.sm70.rank_report import RankReporter

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

ON = {name: RouteState("enabled") for name in ROUTES}


def written(run_dir: Path, rank: int = 0) -> dict[str, Any]:
    return dict(json.loads((run_dir / rundir.RANKS / f"{rank}.json").read_text()))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_report, "_NOTES", {})


def reporter(run_dir: Path, counters: Counters, every: float = 3600.0) -> RankReporter:
    return RankReporter(run_dir, 0, ON, {"source": "ab"}, counters=counters, every=every)


def test_counts_are_by_route() -> None:
    counters = Counters()
    counters.count("fp8_dense")
    counters.count("fp8_dense", 2)
    counters.count("fp8_dense.rows32", 4)
    counters.count("fp8_dense_other")
    assert counters.of_route("fp8_dense") == {"dispatched": 3, "rows32": 4}
    assert counters.of_route("silu_mul") == {"dispatched": 0}
    assert counters.snapshot() == {"fp8_dense": 3, "fp8_dense.rows32": 4, "fp8_dense_other": 1}


@pytest.mark.usefixtures("notes")
def test_the_file_has_what_the_report_promises(tmp_path: Path) -> None:
    counters = Counters()
    counters.count("fp8_dense", 7)
    rank_report.note("fp8_dense", tactic={"source": "timed"})
    rank_report.note("fp8_dense", resident_bytes=1024)
    one = reporter(tmp_path, counters)
    one.flush()
    told = written(tmp_path)
    details = told["routes"]["fp8_dense"]["details"]
    assert details == {"tactic": {"source": "timed"}, "resident_bytes": 1024, "counters": {"dispatched": 7}}
    assert (told["pid"], told["kernels"], told["counters"]) == (os.getpid(), {"source": "ab"}, {"fp8_dense": 7})
    assert set(ranks(tmp_path)) == {0}
    one.close()


@pytest.mark.usefixtures("notes")
def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    counters = Counters()
    one = reporter(tmp_path, counters)
    one.flush()
    (tmp_path / rundir.RANKS / "0.json").unlink()
    one.flush()
    assert not (tmp_path / rundir.RANKS / "0.json").exists()
    counters.count("silu_mul")
    one.close()
    assert written(tmp_path)["counters"] == {"silu_mul": 1}


@pytest.mark.usefixtures("notes")
def test_a_running_worker_is_read(tmp_path: Path) -> None:
    counters = Counters()
    one = reporter(tmp_path, counters, every=0.01)
    one.start()
    counters.count("gdn_decode", 5)
    end = time.monotonic() + 60
    while written(tmp_path)["counters"] != {"gdn_decode": 5}:
        assert time.monotonic() < end
        time.sleep(0.01)
    one.close()


@pytest.mark.usefixtures("notes")
def test_what_stays_in_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_report, "_RESIDENT", {})
    one = reporter(tmp_path, Counters())
    one.flush()
    assert written(tmp_path)["resident_bytes"] == {}
    rank_report.tell_resident({"graphs": 1000, "workspaces": 24})
    one.flush()
    assert written(tmp_path)["resident_bytes"] == {"graphs": 1000, "workspaces": 24}
    one.close()


def work_until_told(run_dir: Path, ready: Connection) -> None:
    """Be a worker as vLLM 0.19.1 makes them: SIGTERM becomes SystemExit."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    RankReporter(run_dir, 3, ON, {}, every=3600.0).start()
    COUNTERS.count("all_reduce", 11)
    ready.send("counted")
    while True:
        signal.pause()


def test_sigterm_leaves_the_last_counts(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=work_until_told, args=(tmp_path, there))
    worker.start()
    assert here.poll(60)
    assert here.recv() == "counted"
    assert written(tmp_path, 3)["counters"] == {}
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == 0
    assert written(tmp_path, 3)["counters"] == {"all_reduce": 11}
    assert written(tmp_path, 3)["routes"]["all_reduce"]["details"]["counters"] == {"dispatched": 11}


@pytest.mark.usefixtures("notes")
def test_a_run_directory_that_is_gone_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    counters = Counters()
    one = RankReporter(tmp_path / "file", 0, ON, {}, counters=counters)
    one.flush()
    counters.count("silu_mul")
    one.close()
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1


@pytest.mark.usefixtures("notes")
def test_a_refusal_is_found_by_the_server(tmp_path: Path) -> None:
    assert rank_report.refusal(tmp_path) is None
    one = reporter(tmp_path, Counters())
    one.flush()
    assert rank_report.refusal(tmp_path) is None
    one.refuse("VLLM_SM70_REQUIRE_PROFILE_ACCELERATION=1 refuses")
    assert rank_report.refusal(tmp_path) == "VLLM_SM70_REQUIRE_PROFILE_ACCELERATION=1 refuses"
    one.close()


def test_probes_read_what_all_ranks_agreed_on(tmp_path: Path) -> None:
    off = RouteState("disabled", "selftest_failed:gdn_decode", details={"served_by": "reference"})
    odd = ON | {"gdn_decode": off}
    rank_report.publish(tmp_path, "p", ["gdn_decode", "fp8_dense"], {0: ON, 1: odd, 2: ON, 3: ON})
    record = rundir.read(tmp_path, rundir.ACCELERATION)
    assert record is not None
    assert record["missing"] == {"gdn_decode": "ranks_differ:1=selftest_failed:gdn_decode"}
    assert (record["enabled"], record["expected"], record["profile"]) == (1, 2, "p")
    assert "ranks" not in record
    assert "ranks" not in record["routes"]["gdn_decode"]["details"]
