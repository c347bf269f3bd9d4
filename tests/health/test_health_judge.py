"""The judgement over every phase, and over records that are missing, old, partial or of the wrong kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import rundir
from appliance.health import judge as judging
from appliance.health.judge import Report, report
from appliance.rundir import plugin_proof
from appliance.rundir.acceleration import AccelerationReport
from appliance.rundir.heartbeat import Heartbeat
from appliance.rundir.phase import Phase
from appliance.rundir.plan import PlanRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = 10_000.0
GRACE = 120.0


def phase(name: str = "ready", **changes: Any) -> dict[str, Any]:
    record = {
        "phase": name,
        "started": NOW - 100,
        "since": NOW - 60,
        "at": NOW - 0.5,
        "budget_s": 900,
        "stall_grace_s": GRACE,
        "reason": None,
        "pid": 4711,
        "stopped": [],
        "models": ["smol"],
        "plugins": {"api": True, "core": True},
        "restarts": 0,
        "progress": None,
    }
    return record | changes


def heartbeat(**changes: Any) -> dict[str, Any]:
    record = {
        "at": NOW - 0.5,
        "pid": 4712,
        "step": 500,
        "step_at": NOW - 0.6,
        "running": 0,
        "waiting": 0,
        "in_flight": 0,
        "sockets": 0,
        "awaiting": 0,
        "oldest_awaiting_at": None,
        "busy_since": None,
        "kv_usage": 0.1,
        "steps_record": "on",
    }
    return record | changes


def plan(*expected: str) -> dict[str, Any]:
    return {"expected_acceleration": list(expected)}


def routes(**states: str | None) -> dict[str, Any]:
    """Each route with its reason; None stands for enabled."""
    return {
        "routes": {
            name: {"state": "disabled" if reason else "enabled", "reason": reason} for name, reason in states.items()
        }
    }


Json = dict[str, Any] | None


def judge(phase: Json, beat: Json, acceleration: Json, plan: Json, now: float, errors: Sequence[str] = ()) -> Report:
    """Judge what the files would hold."""
    return judging.judge(
        None if phase is None else Phase.from_json(phase),
        None if beat is None else Heartbeat.from_json(beat),
        None if acceleration is None else AccelerationReport.from_json(acceleration),
        None if plan is None else PlanRecord.from_json(plan),
        now,
        errors,
    )


def serving(beat: dict[str, Any] | None, **changes: Any) -> Report:
    return judge(phase(**changes), beat, None, plan(), NOW)


def answers(judged: Report) -> tuple[str, bool, bool, bool]:
    return judged.phase, judged.startup_ok, judged.live_ok, judged.ready_ok


READY = ("ready", True, True, True)
DEGRADED = ("degraded", True, True, False)
STALLED = ("stalled", True, False, False)
DEAD = ("dead", False, False, False)


class TestWithoutEngine:
    def test_an_empty_run_directory_is_dead(self) -> None:
        judged = judge(None, None, None, None, NOW)
        assert answers(judged) == DEAD
        assert "phase.json is missing or unreadable" in judged.reason

    def test_a_silent_guardian_is_dead_whatever_it_wrote_last(self) -> None:
        judged = judge(phase(at=NOW - 15.1), heartbeat(), None, plan(), NOW)
        assert answers(judged) == DEAD
        assert judged.reason == ("the guardian last wrote phase.json 15 s ago; it does so every second while it lives")

    def test_fifteen_seconds_are_not_silence(self) -> None:
        assert answers(judge(phase(at=NOW - 15), heartbeat(), None, plan(), NOW)) == READY

    def test_a_record_of_an_earlier_boot_counts_for_nothing(self) -> None:
        judged = judge(phase(at=NOW + 5_000), heartbeat(), None, plan(), NOW)
        assert answers(judged) == DEAD
        assert "before this host was restarted" in judged.reason

    def test_dead_tells_the_guardians_reason(self) -> None:
        judged = judge(phase("dead", reason="the engine ended by itself with SIGKILL"), heartbeat(), None, None, NOW)
        assert answers(judged) == DEAD
        assert judged.reason == "the engine ended by itself with SIGKILL"

    @pytest.mark.parametrize("record", [{}, {"phase": "ready"}, phase(at="soon"), phase(at=None), phase(at=True)])
    def test_a_phase_of_no_known_time_is_dead(self, record: dict[str, Any]) -> None:
        judged = judge(record, heartbeat(), None, plan(), NOW)
        assert answers(judged) == DEAD
        assert "at no known time" in judged.reason

    def test_an_unknown_phase_is_dead(self) -> None:
        judged = judge(phase("napping"), heartbeat(), None, plan(), NOW)
        assert answers(judged) == DEAD
        assert judged.reason == 'phase.json names the unknown phase "napping"'


class TestOnTheWay:
    @pytest.mark.parametrize("name", ["starting", "loading", "warming"])
    def test_within_the_budget_it_lives_and_nothing_more(self, name: str) -> None:
        judged = judge(phase(name, started=NOW - 34), None, None, None, NOW)
        assert answers(judged) == (name, False, True, False)
        assert judged.reason == f"{name} for 34 s of at most 900 s"
        assert (judged.elapsed_s, judged.budget_s) == (34, 900)

    def test_past_the_budget_it_does_not_live(self) -> None:
        judged = judge(phase("loading", started=NOW - 901), None, None, None, NOW)
        assert answers(judged) == ("loading", False, False, False)
        assert judged.reason == "loading for 901 s, which is past the budget of 900 s"

    def test_progress_is_told(self) -> None:
        judged = judge(phase("loading", progress="shards 3/12"), None, None, None, NOW)
        assert judged.reason.endswith("of at most 900 s: shards 3/12")

    def test_without_a_budget_or_a_start_it_lives(self) -> None:
        judged = judge(phase("starting", budget_s=None, started=None), None, None, None, NOW)
        assert answers(judged) == ("starting", False, True, False)
        assert judged.reason == "starting"


class TestServing:
    def test_idle(self) -> None:
        judged = serving(heartbeat())
        assert answers(judged) == READY
        assert judged.reason == "idle, last step 0.6 s ago"
        assert judged.elapsed_s == 40
        assert judged.details["state"] == "idle"

    def test_idle_for_a_day_is_not_stalled(self) -> None:
        judged = serving(heartbeat(step_at=NOW - 86_400))
        assert answers(judged) == READY
        assert judged.reason == "idle, last step 86400 s ago"

    def test_never_asked_is_ready(self) -> None:
        judged = serving(heartbeat(step=0, step_at=None))
        assert answers(judged) == READY
        assert judged.reason == "idle, no step yet"

    def test_saturated_for_hours_is_not_stalled(self) -> None:
        judged = serving(
            heartbeat(running=4, waiting=90, in_flight=94, awaiting=91, busy_since=NOW - 7_200, step_at=NOW - 0.7)
        )
        assert answers(judged) == READY
        assert judged.reason == "saturated: 4 running, 90 waiting, 94 requests in flight, last step 0.7 s ago"

    def test_a_slow_reader_of_a_finished_answer_is_not_work(self) -> None:
        judged = serving(heartbeat(in_flight=1, busy_since=None, step_at=NOW - 5_000))
        assert answers(judged) == READY
        assert judged.details["state"] == "idle"

    def test_requests_that_the_engine_forgot_to_give_up_are_not_work(self) -> None:
        assert answers(serving(heartbeat(running=1, in_flight=0, step_at=NOW - 5_000))) == READY

    def test_an_open_websocket_is_not_work(self) -> None:
        judged = serving(heartbeat(waiting=1, in_flight=1, sockets=1, step_at=NOW - 5_000))
        assert answers(judged) == READY

    def test_a_long_step_within_the_grace_is_ready(self) -> None:
        judged = serving(heartbeat(running=1, in_flight=1, busy_since=NOW - 500, step_at=NOW - GRACE))
        assert answers(judged) == READY


class TestStalled:
    def test_running_requests_without_a_step(self) -> None:
        judged = serving(heartbeat(running=2, waiting=3, in_flight=5, busy_since=NOW - 900, step_at=NOW - 130.5))
        assert answers(judged) == STALLED
        assert judged.reason == (
            "2 running, 3 waiting and 0 unanswered requests, but no step for 130 s, longer than the grace of 120 s"
        )

    def test_an_unanswered_request_that_the_engine_never_took(self) -> None:
        judged = serving(heartbeat(awaiting=1, in_flight=1, busy_since=NOW - 121, step_at=NOW - 9_000))
        assert answers(judged) == STALLED

    def test_a_request_after_long_idleness_has_its_whole_grace(self) -> None:
        judged = serving(heartbeat(awaiting=1, in_flight=1, busy_since=NOW - 2, step_at=NOW - 9_000))
        assert answers(judged) == READY

    def test_a_blocked_event_loop(self) -> None:
        judged = serving(heartbeat(at=NOW - 121), since=NOW - 5_000)
        assert answers(judged) == STALLED
        assert judged.reason == ("the engine's event loop has not answered for 121 s, longer than the grace of 120 s")

    def test_no_heartbeat_at_all_long_after_ready(self) -> None:
        assert answers(serving(None, since=NOW - 121)) == STALLED

    def test_stopped_processes_are_named(self) -> None:
        held = [{"pid": 9, "name": "EngineCore", "since": NOW - 1}]
        judged = serving(heartbeat(at=NOW - 200), since=NOW - 5_000, stopped=held)
        assert judged.reason.endswith("; stopped (state T): EngineCore (pid 9)")

    def test_a_process_stopped_while_idle(self) -> None:
        held = [{"pid": 9, "name": "EngineCore", "since": NOW - 121}]
        judged = serving(heartbeat(step_at=NOW - 500), stopped=held)
        assert answers(judged) == STALLED
        assert judged.reason == "EngineCore (pid 9) has been stopped (state T) for 121 s"

    def test_a_shorter_grace_counts(self) -> None:
        beat = heartbeat(running=1, in_flight=1, busy_since=NOW - 60, step_at=NOW - 4)
        assert answers(serving(beat, stall_grace_s=3)) == STALLED
        assert answers(serving(beat, stall_grace_s=30)) == READY

    def test_a_phase_without_a_grace_uses_the_default(self) -> None:
        beat = heartbeat(running=1, in_flight=1, busy_since=NOW - 600, step_at=NOW - 119)
        assert answers(serving(beat, stall_grace_s=None)) == READY


class TestDegraded:
    def test_a_late_heartbeat(self) -> None:
        judged = serving(heartbeat(at=NOW - 11), since=NOW - 5_000)
        assert answers(judged) == DEGRADED
        assert judged.reason == "the last heartbeat was written 11 s ago, wanted at most 10 s"

    def test_no_heartbeat_yet(self) -> None:
        judged = serving(None, since=NOW - 1)
        assert answers(judged) == DEGRADED
        assert judged.reason == "the engine has written no heartbeat"

    def test_a_process_just_stopped(self) -> None:
        judged = serving(heartbeat(), stopped=[{"pid": 9, "name": "EngineCore"}])
        assert answers(judged) == DEGRADED
        assert judged.reason == "EngineCore (pid 9) is stopped (state T)"

    def test_no_model(self) -> None:
        assert serving(heartbeat(), models=[]).reason == "the engine lists no model"

    @pytest.mark.parametrize(
        ("proven", "missing"),
        [({"api": True, "core": False}, "core"), ({"api": False, "core": False}, "api, core"), (None, "api, core")],
    )
    def test_an_unproven_plugin(self, proven: Any, missing: str) -> None:
        judged = serving(heartbeat(), plugins=proven)
        assert answers(judged) == DEGRADED
        assert judged.reason == f"nothing proves the appliance's plugin loaded in: {missing}"

    def test_a_plugin_that_said_what_failed(self) -> None:
        beaten = phase(plugins={"api": True, "core": False})
        judged = judge(beaten, heartbeat(), None, plan(), NOW, ["core (pid 9): ImportError: no sm70_kernels"])
        assert judged.reason.endswith("loaded in: core (core (pid 9): ImportError: no sm70_kernels)")

    def test_expected_routes_that_are_off(self) -> None:
        acceleration = routes(fp8_dense=None, gdn_decode="operator_missing:gdn_decode", long_context="budget<8000")
        judged = judge(
            phase(), heartbeat(), acceleration, plan("fp8_dense", "gdn_decode", "long_context", "silu_mul"), NOW
        )
        assert answers(judged) == DEGRADED
        assert judged.reason == (
            "expected routes are off: gdn_decode (operator_missing:gdn_decode), long_context (budget<8000), "
            "silu_mul (not reported)"
        )

    def test_a_kernel_that_this_build_has_on_no_card_is_told_and_no_fault(self) -> None:
        acceleration = routes(gdn_decode="operator_missing:gdn_decode", long_context="budget<8000")
        acceleration["routes"]["gdn_decode"]["details"] = {"not_built": True}
        judged = judge(phase(), heartbeat(), acceleration, plan("gdn_decode"), NOW)
        assert answers(judged) == READY
        assert judged.details["routes_off"] == {"gdn_decode": "operator_missing:gdn_decode"}
        judged = judge(phase(), heartbeat(), acceleration, plan("gdn_decode", "long_context"), NOW)
        assert judged.reason == "expected routes are off: long_context (budget<8000)"

    def test_routes_that_nobody_expects_do_not_matter(self) -> None:
        assert answers(judge(phase(), heartbeat(), routes(all_reduce="kv_dtype"), plan(), NOW)) == READY

    def test_what_a_person_switched_off_is_told_and_not_missed(self) -> None:
        judged = judge(phase(), heartbeat(), routes(fp8_dense="user_override"), plan("fp8_dense"), NOW)
        assert answers(judged) == READY
        assert judged.details["routes_overridden"] == {"fp8_dense": "user_override"}

    def test_a_start_that_compiles_anew_is_told_and_serves(self) -> None:
        states = routes(compile_cache="warm_tokens_differ", fp8_dense=None)
        judged = judge(phase(), heartbeat(), states, plan("fp8_dense", "compile_cache"), NOW)
        assert answers(judged) == READY
        assert judged.details["routes_off"] == {"compile_cache": "warm_tokens_differ"}

    def test_no_report_of_expected_routes(self) -> None:
        judged = judge(phase(), heartbeat(), None, plan("fp8_dense", "silu_mul"), NOW)
        assert judged.reason == "acceleration.json is missing or unreadable, 2 routes are expected"

    def test_no_plan(self) -> None:
        judged = judge(phase(), heartbeat(), routes(), None, NOW)
        assert answers(judged) == DEGRADED
        assert "plan.json is missing or unreadable" in judged.reason

    def test_every_fault_is_told(self) -> None:
        judged = serving(None, since=NOW - 1, models=None, plugins={})
        assert judged.reason.count(";") == 2


def test_draining_lives_and_takes_nothing_new() -> None:
    judged = judge(phase("draining"), heartbeat(in_flight=2), None, plan(), NOW)
    assert answers(judged) == ("draining", True, True, False)
    assert judged.reason == "draining: 2 requests in flight, new ones are refused"


anything = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(10**9), 10**9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@given(st.data())
def test_records_of_any_shape_are_judged_without_an_error(data: st.DataObject) -> None:
    """A probe that raises says nothing; whatever stands in the files, it must say something."""

    def spoilt(record: dict[str, Any]) -> dict[str, Any]:
        spoil = data.draw(st.dictionaries(st.sampled_from(sorted(record)), anything, max_size=4))
        return record | spoil

    name = data.draw(st.sampled_from(["starting", "ready", "draining", "dead"]))
    judged = judge(
        spoilt(phase(name)) | {"at": NOW},
        spoilt(heartbeat(in_flight=1, busy_since=NOW)),
        spoilt({"routes": {"fp8_dense": {"state": "enabled"}}}),
        spoilt(plan("fp8_dense")),
        NOW,
    )
    assert judged.reason
    assert judged.ready_ok <= judged.live_ok


def test_report_reads_the_run_directory(tmp_path: Any) -> None:
    now = rundir.clock()
    rundir.write(tmp_path, rundir.PHASE, phase(at=now, since=now, plugins={"api": False, "core": True}))
    rundir.write(tmp_path, rundir.HEARTBEAT, heartbeat(at=now))
    rundir.write(tmp_path, rundir.PLAN, plan())
    (tmp_path / rundir.PLUGINS).mkdir()
    rundir.write(tmp_path / rundir.PLUGINS, "7.json", {"pid": 7, "role": "api", "error": "OSError: no"})
    judged = report(tmp_path)
    assert answers(judged) == DEGRADED
    assert judged.reason.endswith("loaded in: api (api (pid 7): OSError: no)")


def test_report_of_corrupt_files(tmp_path: Any) -> None:
    for name in (rundir.PHASE, rundir.HEARTBEAT, rundir.PLAN, rundir.ACCELERATION):
        (tmp_path / name).write_bytes(b'{"phase": "rea\xff')
    assert answers(report(tmp_path)) == DEAD


class TestProof:
    def test_only_living_processes_without_an_error_prove_anything(self, tmp_path: Any) -> None:
        folder = tmp_path / rundir.PLUGINS
        folder.mkdir()
        rundir.write(folder, "1.json", {"pid": 1, "role": "api"})
        rundir.write(folder, "2.json", {"pid": 2, "role": "core", "error": "ImportError: x"})
        rundir.write(folder, "3.json", {"pid": 3, "role": "worker"})
        (folder / "4.json").write_text("{")
        (folder / ".5.json.77").write_text("{}")
        assert plugin_proof.proven(tmp_path, {1, 2, 3, 4}) == {"api": True, "core": False}
        assert plugin_proof.proven(tmp_path, {2, 3}) == {"api": False, "core": False}
        assert plugin_proof.errors(tmp_path) == ["core (pid 2): ImportError: x"]
        assert [record.pid for record in plugin_proof.read_all(tmp_path)] == [1, 2, 3]

    def test_no_folder_proves_nothing(self, tmp_path: Any) -> None:
        assert plugin_proof.proven(tmp_path, {1}) == {"api": False, "core": False}
        assert plugin_proof.errors(tmp_path) == []
