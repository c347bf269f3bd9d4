"""/health/startup, /health/live and /health/ready over every state of the run directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance import rundir
from appliance.health import judge, probe
from appliance.sidecar import answers
from appliance.sidecar import health as endpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    Get = Callable[..., httpx.Response]
    Put = Callable[..., None]

PROBES = ("startup", "live", "ready")


def statuses(get: Get) -> dict[str, int]:
    return {name: get(f"/health/{name}").status_code for name in PROBES}


def now() -> float:
    return rundir.clock()


def test_ready(get: Get, put: Put) -> None:
    put()
    assert statuses(get) == {"startup": 200, "live": 200, "ready": 200}
    body = get("/health/ready").json()
    assert body["phase"] == "ready"
    assert body["status"] == "ok"
    assert body["details"]["running"] == 2


def test_idle_for_long_stays_ready(get: Get, put: Put) -> None:
    idle = {"running": 0, "waiting": 0, "in_flight": 0, "awaiting": 0, "step_at": now() - 90_000, "busy_since": None}
    put(heartbeat=idle)
    assert statuses(get) == {"startup": 200, "live": 200, "ready": 200}
    assert get("/health/ready").json()["reason"].startswith("idle")


def test_starting_within_the_budget_is_alive_and_not_ready(get: Get, put: Put) -> None:
    put(phase={"phase": "loading", "started": now() - 42, "progress": "weights 3/8"}, heartbeat=None, acceleration=None)
    assert statuses(get) == {"startup": 503, "live": 200, "ready": 503}
    body = get("/health/startup").json()
    assert (body["phase"], body["budget_s"]) == ("loading", 900)
    assert 42 <= body["elapsed_s"] < 60
    assert body["reason"].endswith("weights 3/8")


def test_over_the_budget_is_not_alive(get: Get, put: Put) -> None:
    put(phase={"phase": "warming", "started": now() - 1000}, heartbeat=None, acceleration=None)
    assert statuses(get) == {"startup": 503, "live": 503, "ready": 503}
    assert "past the budget of 900 s" in get("/health/live").json()["reason"]


def test_stalled_is_neither_alive_nor_ready(get: Get, put: Put) -> None:
    put(heartbeat={"step_at": now() - 200, "busy_since": now() - 200})
    assert statuses(get) == {"startup": 200, "live": 503, "ready": 503}
    body = get("/health/live").json()
    assert body["phase"] == "stalled"
    assert "no step for" in body["reason"]


def test_degraded_is_alive_and_not_ready_and_names_the_route(get: Get, put: Put) -> None:
    put(plan={"expected_acceleration": ["gdn_decode", "no_such_route"]})
    assert statuses(get) == {"startup": 200, "live": 200, "ready": 503}
    assert "no_such_route (not reported)" in get("/health/ready").json()["reason"]


def test_a_missing_run_directory_is_an_answer(get: Get, run_dir: Path) -> None:
    run_dir.rmdir()
    assert statuses(get) == {"startup": 503, "live": 503, "ready": 503}
    assert get("/health/live").json()["reason"].startswith("phase.json is missing or unreadable")


def test_a_run_directory_that_comes_later_is_seen(get: Get, put: Put, run_dir: Path) -> None:
    run_dir.rmdir()
    assert get("/health/ready").status_code == 503
    run_dir.mkdir()
    put()
    assert get("/health/ready").status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"phase": "rea', b"\0" * 4096])
@pytest.mark.parametrize("name", [rundir.PHASE, rundir.PLAN, rundir.HEARTBEAT])
def test_a_corrupt_record_fails_readiness_with_a_reason(
    name: str, content: bytes, get: Get, put: Put, run_dir: Path
) -> None:
    put()
    (run_dir / name).write_bytes(content)
    answer = get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["reason"]


def test_the_exec_probe_and_the_endpoint_say_the_same(
    get: Get, put: Put, run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(phase={"phase": "dead", "reason": "the engine ended by itself"})
    moment = now()
    monkeypatch.setattr(rundir, "clock", lambda: moment)
    for name in PROBES:
        assert probe.main(name, [], run_dir) == 1
        assert json.loads(capsys.readouterr().out) == get(f"/health/{name}").json()


def test_a_judge_that_breaks_fails_closed(get: Get, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put()

    def broken(run_dir: Path) -> judge.Report:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(judge, "report", broken)
    assert statuses(get) == {"startup": 503, "live": 503, "ready": 503}
    body = get("/health/live").json()
    assert body["reason"] == "internal error of the sidecar: RuntimeError; its log tells more"
    assert answers.Health.model_validate(body).phase == "dead"


def test_a_figure_that_json_cannot_hold_is_no_figure_of_a_record(get: Get, put: Put, run_dir: Path) -> None:
    put()
    beat = (run_dir / rundir.HEARTBEAT).read_text().replace('"kv_usage":0.25', '"kv_usage":NaN')
    (run_dir / rundir.HEARTBEAT).write_text(beat)
    assert get("/health/ready").json()["details"]["kv_usage"] is None


def test_a_figure_that_json_cannot_hold_fails_closed(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge.Report("ready", "idle", True, True, True, details={"kv_usage": float("nan")})
    monkeypatch.setattr(judge, "report", lambda _: judged)
    assert statuses(get) == {"startup": 503, "live": 503, "ready": 503}
    assert get("/health/ready").json()["reason"].startswith("internal error of the sidecar")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("phase", "at", "since", "started", "budget_s", "stall_grace_s", "stopped", "plugins", "models", "reason")
BEATS = ("at", "step", "step_at", "running", "waiting", "in_flight", "sockets", "awaiting", "busy_since", "kv_usage")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    phase=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3),
    heartbeat=st.dictionaries(st.sampled_from(BEATS), JSON, max_size=3),
    plan=st.dictionaries(st.sampled_from(("expected_acceleration", "profile")), JSON, max_size=1),
)
def test_whatever_the_records_hold_the_answer_is_json_with_a_reason(
    phase: dict[str, Any], heartbeat: dict[str, Any], plan: dict[str, Any], put: Put, run_dir: Path
) -> None:
    put(phase=phase, heartbeat=heartbeat, plan=plan)
    for name in PROBES:
        answer = endpoint.answer(name, run_dir)
        assert answer.status_code in (200, 503)
        assert answers.Health.model_validate_json(bytes(answer.body)).reason


@pytest.mark.parametrize("name", PROBES)
def test_the_answer_has_the_documented_shape(name: str, get: Get, put: Put) -> None:
    put()
    body = get(f"/health/{name}").json()
    assert set(answers.Health.model_validate(body).model_dump()) == set(body)


def test_health_is_never_cached(get: Get) -> None:
    headers = get("/health/live").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-type"] == "application/json"
