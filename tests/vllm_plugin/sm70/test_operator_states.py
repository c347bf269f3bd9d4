"""Which operators' kernels serve: by the route that owns them, by the card, and by what any rank saw."""

from __future__ import annotations

from dataclasses import replace

from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import ROUTES
from appliance.vllm_plugin.sm70 import operator_states, routes
from appliance.vllm_plugin.sm70.routes import Facts
from appliance.vllm_plugin.sm70.selftest import SelfTest
from tests.vllm_plugin.sm70.test_routes import C32, EVERY

ON = {name: RouteState("enabled") for name in ROUTES}
V100 = Facts(active=True, capability=(7, 0), kernels=EVERY, operators=EVERY, sources={"additional_config": "config"})


def switched(**switches: bool) -> dict[str, RouteState]:
    return routes.decide(V100, replace(C32, switches=switches))


def test_an_operator_is_its_first_routes() -> None:
    assert operator_states.OWNER["attention_decode"] == "attention_backend"
    assert operator_states.OWNER["dense_w8a16"] == "fp8_dense"
    assert operator_states.OWNER["dense_expand"] == "fp8_prefill"
    assert operator_states.OWNER["gdn_verify"] == "gdn_decode"


def test_a_missing_or_failed_kernel_is_off_and_its_neighbours_serve() -> None:
    failed = SelfTest("gdn_decode", False, "selftest_failed:gdn_decode")
    facts = replace(V100, kernels=EVERY - {"attention_prefill"}, selftests={"gdn_decode": failed})
    states = routes.decide(facts, C32)
    assert states["attention_backend"].reason == "operator_missing:attention_prefill"
    off = operator_states.off(states, [operator_states.unusable(facts)])
    assert off["attention_prefill"] == "operator_missing:attention_prefill"
    assert off["gdn_decode"] == "selftest_failed:gdn_decode"
    assert not {"attention_decode", "kv_cache_write", "gdn_verify"} & off.keys()
    # The decode kernel is there, so its rows of a mixed batch go through it.
    assert states["mixed_batch_resident_decode"].state == "enabled"


def test_what_fails_on_one_rank_is_off_on_all() -> None:
    assert operator_states.off(ON, [{}, {"rms_norm": "selftest_failed:rms_norm"}, {}]) == {
        "rms_norm": "selftest_failed:rms_norm"
    }
    assert operator_states.off(ON, [{}, {}]) == {}


def test_a_switch_turns_off_all_that_is_made_of_the_operators() -> None:
    states = switched(fp8_dense=False)
    assert (states["fp8_prefill"].state, states["fp8_prefill"].reason) == ("disabled", "user_override")
    assert states["fp8_prefill"].source == "config"
    assert states["fp8_prefill"].details["served_by"] == "fp8_dense"
    off = operator_states.off(states, [{}])
    assert {name for name, reason in off.items() if reason == "user_override"} == {
        "dense_w8a16",
        "dense_w8a16_silu_mul",
        "dense_expand",
    }


def test_a_switch_of_another_route_leaves_the_owners_operators_on() -> None:
    states = switched(mixed_batch_resident_decode=False, fp8_prefill=False)
    off = operator_states.off(states, [{}])
    assert not {"attention_decode", "dense_w8a16"} & off.keys()
    assert off["dense_expand"] == "user_override"
    assert states["fp8_dense"].state == "enabled"
