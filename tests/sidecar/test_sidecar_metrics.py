"""/metrics: valid Prometheus text, and never a figure that is not known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from appliance import rundir
from appliance.cache.store import Store
from appliance.sidecar.metrics import PHASES, Facts
from appliance.sidecar.options import Options
from appliance.sidecar.services import Services

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    Get = Callable[..., httpx.Response]
    Put = Callable[..., None]
    Samples = dict[str, float]

ALWAYS = {"appliance_startup", "appliance_live", "appliance_ready", "appliance_phase", "appliance_nvml_up"}
OF_THE_ENGINE = {"appliance_acceleration_report_stale"}
OF_THE_GUARDIAN = {"appliance_phase_seconds", "appliance_start_budget_seconds", "appliance_engine_restarts_total"}
OF_THE_HEARTBEAT = {
    "appliance_heartbeat_age_seconds",
    "appliance_step_age_seconds",
    "appliance_steps_total",
    "appliance_requests_running",
    "appliance_requests_waiting",
    "appliance_requests_in_flight",
    "appliance_kv_cache_usage_ratio",
    "appliance_requests_finished_total",
    "appliance_prompt_tokens_total",
    "appliance_generation_tokens_total",
}


@pytest.fixture
def scrape(get: Get) -> Callable[[], Samples]:
    """Value by `name` or `name{label}` of every sample but the build's."""

    def samples() -> Samples:
        answer = get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        found: Samples = {}
        for family in text_string_to_metric_families(answer.text):
            assert family.documentation
            for sample in family.samples:
                if sample.name != "appliance_build_info":
                    labels = ",".join(sample.labels.values())
                    key = f"{sample.name}{{{labels}}}" if labels else sample.name
                    assert key not in found
                    found[key] = sample.value
        return found

    return samples


def names(samples: Samples) -> set[str]:
    return {key.partition("{")[0] for key in samples}


def phase(samples: Samples) -> str:
    on = [key for key, value in samples.items() if key.startswith("appliance_phase{") and value == 1]
    assert len(on) == 1
    return on[0].removeprefix("appliance_phase{").removesuffix("}")


def test_a_ready_engine_has_every_metric(scrape: Callable[[], Samples], put: Put) -> None:
    put(heartbeat={"at": rundir.clock() - 4, "step_at": rundir.clock() - 6}, phase={"restarts": 2})
    found = scrape()
    assert names(found) == {
        *ALWAYS,
        *OF_THE_GUARDIAN,
        *OF_THE_HEARTBEAT,
        *OF_THE_ENGINE,
        "appliance_stalled",
        "appliance_route_state",
    }
    assert phase(found) == "ready"
    assert (found["appliance_ready"], found["appliance_live"], found["appliance_stalled"]) == (1, 1, 0)
    assert found["appliance_requests_running"] == 2
    assert found["appliance_requests_waiting"] == 1
    assert found["appliance_requests_in_flight"] == 3
    assert found["appliance_kv_cache_usage_ratio"] == 0.25
    assert found["appliance_steps_total"] == 52_000
    assert found["appliance_engine_restarts_total"] == 2
    assert found["appliance_start_budget_seconds"] == 900
    assert 3600 <= found["appliance_phase_seconds"] < 3700
    assert 4 <= found["appliance_heartbeat_age_seconds"] < 60
    assert 6 <= found["appliance_step_age_seconds"] < 60


def test_nothing_is_known_of_a_missing_run_directory(scrape: Callable[[], Samples], run_dir: Path) -> None:
    run_dir.rmdir()
    found = scrape()
    assert names(found) == ALWAYS
    assert phase(found) == "dead"
    assert found["appliance_ready"] == found["appliance_live"] == 0


def test_a_start_has_no_requests_to_count(scrape: Callable[[], Samples], put: Put) -> None:
    put(phase={"phase": "loading", "since": rundir.clock() - 5}, heartbeat=None, acceleration=None)
    found = scrape()
    assert names(found) == ALWAYS | OF_THE_GUARDIAN | OF_THE_ENGINE
    assert phase(found) == "loading"


def test_a_heartbeat_without_steps_has_no_step_age(scrape: Callable[[], Samples], put: Put) -> None:
    put(heartbeat={"step_at": None, "step": 0})
    found = scrape()
    assert "appliance_step_age_seconds" not in found
    assert found["appliance_steps_total"] == 0


def test_a_stalled_engine_keeps_its_last_known_requests(scrape: Callable[[], Samples], put: Put) -> None:
    put(heartbeat={"step_at": rundir.clock() - 300, "busy_since": rundir.clock() - 300})
    found = scrape()
    assert phase(found) == "stalled"
    assert (found["appliance_stalled"], found["appliance_live"]) == (1, 0)
    assert found["appliance_requests_running"] == 2


def test_a_dead_engines_requests_are_no_longer_running(scrape: Callable[[], Samples], put: Put) -> None:
    put(phase={"phase": "dead", "reason": "the engine ended by itself with signal 9 SIGKILL", "restarts": 1})
    found = scrape()
    assert names(found) == ALWAYS | OF_THE_GUARDIAN
    assert found["appliance_engine_restarts_total"] == 1


def test_a_dead_guardians_word_is_not_repeated(scrape: Callable[[], Samples], put: Put) -> None:
    put(phase={"at": rundir.clock() - 600})
    assert names(scrape()) == ALWAYS


@pytest.mark.parametrize("name", [rundir.HEARTBEAT, rundir.ACCELERATION, rundir.PLAN, rundir.PHASE])
def test_a_corrupt_record_makes_its_metrics_absent(
    name: str, scrape: Callable[[], Samples], put: Put, run_dir: Path
) -> None:
    put()
    (run_dir / name).write_bytes(b'{"at": 1, "runn')
    found = scrape()
    assert found["appliance_ready"] == 0
    if name == rundir.HEARTBEAT:
        assert not names(found) & OF_THE_HEARTBEAT
    if name == rundir.ACCELERATION:
        assert "appliance_route_state" not in names(found)
    if name == rundir.PHASE:
        assert names(found) == ALWAYS


def test_each_route_is_in_exactly_one_state(scrape: Callable[[], Samples], put: Put) -> None:
    routes = {"gdn_decode": {"state": "disabled"}, "all_reduce": {"state": "enabled"}, "odd": None}
    put(acceleration={"routes": routes})
    found = {key: value for key, value in scrape().items() if key.startswith("appliance_route_state")}
    assert found == {
        "appliance_route_state{gdn_decode,enabled}": 0,
        "appliance_route_state{gdn_decode,disabled}": 1,
        "appliance_route_state{gdn_decode,not_applicable}": 0,
        "appliance_route_state{all_reduce,enabled}": 1,
        "appliance_route_state{all_reduce,disabled}": 0,
        "appliance_route_state{all_reduce,not_applicable}": 0,
    }


def test_a_route_that_is_off_has_its_reason(scrape: Callable[[], Samples], put: Put) -> None:
    routes = {
        "gdn_decode": {"state": "disabled", "reason": "selftest_failed:gdn_decode"},
        "silu_mul": {"state": "disabled", "reason": "x" * 10_000},
        "all_reduce": {"state": "enabled", "reason": None},
    }
    put(acceleration={"routes": routes})
    found = {key for key in scrape() if key.startswith("appliance_route_reason")}
    assert found == {
        "appliance_route_reason{selftest_failed:gdn_decode,gdn_decode}",
        f"appliance_route_reason{{{'x' * 120},silu_mul}}",
    }


def test_names_that_are_no_routes_make_no_series(scrape: Callable[[], Samples], put: Put) -> None:
    put(acceleration={"routes": {f"made_up_{n}": {"state": "disabled", "reason": "r"} for n in range(1000)}})
    assert not [key for key in scrape() if "made_up" in key]


def test_what_each_rank_counts_and_keeps(scrape: Callable[[], Samples], put: Put) -> None:
    counts = {
        "compile_graph.eager": 3,
        "compile_graph.full_graph": 40,
        "compile_graph.replays.full_32": 40,
        "nonfinite_requests": 2,
        "dense_w8a16.kernel": 50,
        "dense_w8a16.kernel.rows": 1600,
        "gdn_decode.triton": 9,
        "made_up.kernel": 1,
        "rms_norm.made_up": 1,
    }
    put(
        acceleration={
            "routes": {},
            "counters": {"0": counts, "1": {}, "made up": counts, "99": counts, "²": counts},
            "resident_bytes": {"0": {"graphs": 1000, "made_up": 1}, "1": {}},
        }
    )
    told = ("appliance_rank_steps", "appliance_operator", "appliance_nonfinite", "appliance_resident")
    assert {name: value for name, value in scrape().items() if name.startswith(told)} == {
        "appliance_rank_steps_total{full_graph,0}": 40,
        "appliance_rank_steps_total{piecewise_graph,0}": 0,
        "appliance_rank_steps_total{eager,0}": 3,
        "appliance_rank_steps_total{full_graph,1}": 0,
        "appliance_rank_steps_total{piecewise_graph,1}": 0,
        "appliance_rank_steps_total{eager,1}": 0,
        "appliance_operator_calls_total{dense_w8a16,kernel,0}": 50,
        "appliance_operator_calls_total{gdn_decode,triton,0}": 9,
        "appliance_operator_rows_total{dense_w8a16,kernel,0}": 1600,
        "appliance_operator_rows_total{gdn_decode,triton,0}": 0,
        "appliance_nonfinite_requests_total{0}": 2,
        "appliance_nonfinite_requests_total{1}": 0,
        "appliance_resident_bytes{0,graphs}": 1000,
    }


KEY = "0" * 32


def test_the_cache_is_counted_by_state(run_dir: Path, put: Put) -> None:
    put()
    services = Services(Options(run_dir, cache_dir=run_dir / "cache"))
    assert "appliance_cache" not in generate_latest(Facts(services)).decode()
    with Store(run_dir / "cache").open(KEY, {}) as lease:
        (lease.folder / "inductor" / "a.so").write_bytes(b"x" * 5000)
        services.cache.look()
        text = generate_latest(Facts(services)).decode()
    assert 'appliance_cache_generations{state="building"} 1.0' in text
    assert 'appliance_cache_generations{state="sealed"} 0.0' in text
    assert "appliance_cache_generations_in_use 1.0" in text
    size = re.search(r'appliance_cache_bytes\{state="building"\} (\S+)', text)
    assert size
    assert float(size[1]) >= 5000
    assert re.search(r"appliance_cache_disk_free_bytes [1-9]", text)
    assert KEY not in text


@pytest.mark.parametrize(
    ("record", "state"),
    [
        ({"enabled": True, "state": "warm", "sealed": True, "tokens_match": True}, "warm"),
        ({"enabled": True, "state": "cold", "sealed": False, "tokens_match": None}, "cold"),
        ({"enabled": False, "state": None, "reason": "user_override"}, "disabled"),
        ({"enabled": True, "state": "odd"}, None),
        ({}, "disabled"),
    ],
)
def test_how_the_start_found_the_cache(
    record: dict[str, Any], state: str | None, scrape: Callable[[], Samples], put: Put, run_dir: Path
) -> None:
    put()
    rundir.write(run_dir, rundir.CACHE, record)
    found = {key: value for key, value in scrape().items() if key.startswith("appliance_cache")}
    states = [key for key, value in found.items() if key.startswith("appliance_cache_start{") and value == 1]
    assert states == ([] if state is None else [f"appliance_cache_start{{{state}}}"])
    assert ("appliance_cache_tokens_match" in found) is (record.get("tokens_match") is not None)


@pytest.mark.needs("engine")
def test_the_build_is_labels(get: Get, put: Put) -> None:
    put()
    families = {family.name: family for family in text_string_to_metric_families(get("/metrics").text)}
    (sample,) = families["appliance_build_info"].samples
    assert sample.value == 1
    assert sample.labels["vllm"] == "0.19.1"
    assert sample.labels["kernels"] == ""


def test_only_the_appliances_own_metrics_are_there(scrape: Callable[[], Samples], put: Put) -> None:
    put()
    assert all(name.startswith("appliance_") for name in names(scrape()))


def test_every_phase_of_the_judge_has_its_sample(scrape: Callable[[], Samples], put: Put) -> None:
    guardians = ("starting", "loading", "warming", "ready", "draining", "dead")
    states: list[dict[str, dict[str, Any] | None]] = [{"phase": {"phase": name}} for name in guardians]
    states += [{"plan": None}, {"heartbeat": {"step_at": 1.0, "busy_since": 1.0}}]
    seen = set()
    for changes in states:
        put(**changes)
        seen.add(phase(scrape()))
    assert seen == set(PHASES)


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.lists(st.integers(), max_size=2)
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    beat=st.dictionaries(st.sampled_from(("at", "step", "step_at", "running", "kv_usage")), ODD, max_size=3),
    guardian=st.dictionaries(st.sampled_from(("since", "budget_s", "restarts")), ODD, max_size=3),
    routes=st.one_of(ODD, st.dictionaries(st.text(max_size=8), ODD, max_size=2)),
)
def test_odd_records_still_make_valid_text(
    beat: dict[str, Any], guardian: dict[str, Any], routes: object, put: Put, run_dir: Path
) -> None:
    put(heartbeat=beat, phase=guardian, acceleration={"routes": routes})
    text = generate_latest(Facts(Services(Options(run_dir)))).decode()
    found = {family.name for family in text_string_to_metric_families(text)}
    assert "appliance_phase" in found
