"""Which operators' kernels serve: by the route that owns them, by the card, and by what any rank saw."""

from __future__ import annotations

from dataclasses import replace

from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import OWNER, ROUTES
from appliance.vllm_plugin.sm70 import operator_states, routes
from appliance.vllm_plugin.sm70.routes import Facts
from appliance.vllm_plugin.sm70.selftest import SelfTest
from tests.vllm_plugin.sm70.test_routes import C32, EVERY

ON = {name: RouteState("enabled") for name in ROUTES}
V100 = Facts(active=True, capability=(7, 0), kernels=EVERY, operators=EVERY, sources={"additional_config": "config"})


def switched(**switches: bool) -> dict[str, RouteState]:
    return routes.decide(V100, replace(C32, switches=switches))


def test_an_operator_is_its_first_routes() -> None:
    assert OWNER["attention_decode"] == "attention_backend"
    assert OWNER["dense_w8a16"] == "fp8_dense"
    assert OWNER["dense_expand"] == "fp8_prefill"
    assert OWNER["gdn_verify"] == "dflash2_verifier"


def test_a_missing_or_failed_kernel_is_off_and_its_neighbours_serve() -> None:
    failed = SelfTest("gdn_decode", False, "selftest_failed:gdn_decode")
    facts = replace(V100, kernels=EVERY - {"attention_prefill"}, selftests={"gdn_decode": failed})
    states = routes.decide(facts, C32)
    assert states["attention_backend"].reason == "operator_missing:attention_prefill"
    off = operator_states.off(states, [operator_states.unusable(facts)])
    assert off["attention_prefill"] == "operator_missing:attention_prefill"
    assert off["gdn_decode"] == "selftest_failed:gdn_decode"
    assert not {"attention_decode", "kv_cache_write"} & off.keys()
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


def test_on_a_cpu_the_references_serve_whatever_shape_a_kernel_would_want() -> None:
    cpu = replace(V100, capability=None, kernels=frozenset())
    small = routes.decide(cpu, replace(C32, head_dim=128))["qk_norm_rope"]
    assert (small.reason, small.details["served_by"]) == ("head_dim", "reference")
    off = routes.decide(cpu, replace(C32, switches={"qk_norm_rope": False}))["qk_norm_rope"]
    assert (off.reason, off.details["served_by"]) == ("user_override", "upstream")
    assert routes.decide(V100, replace(C32, head_dim=128))["qk_norm_rope"].details["served_by"] == "upstream"


def test_a_switch_of_another_route_leaves_the_owners_operators_on() -> None:
    states = switched(mixed_batch_resident_decode=False, fp8_prefill=False)
    off = operator_states.off(states, [{}])
    assert not {"attention_decode", "dense_w8a16"} & off.keys()
    assert off["dense_expand"] == "user_override"
    assert states["fp8_dense"].state == "enabled"


def test_pages_have_our_order_only_where_the_writer_and_the_reader_serve() -> None:
    for name in operator_states.PAGES:
        off = operator_states.off(ON, [{}, {name: f"selftest_failed:{name}"}])
        assert off == dict.fromkeys((*operator_states.PAGES, "attention_prefill"), f"selftest_failed:{name}")
    off = operator_states.off(ON, [{"attention_prefill": "selftest_failed:attention_prefill"}])
    assert set(off) == {"attention_prefill"}


def test_the_switch_of_a_format_turns_decode_attentions_kernel_off_for_that_format_alone() -> None:
    states = switched(fp16_grouped_fp32=False)
    pages = (*operator_states.PAGES, "attention_prefill")
    assert operator_states.off(states, [{}]) == dict.fromkeys(pages, "user_override") | {
        name: states[owner].reason for name, owner in OWNER.items() if states[owner].state != "enabled"
    }
    assert "attention_decode" not in operator_states.off(states, [{}], "fp8_e4m3")
    assert "attention_decode" not in operator_states.off(states, [{}], "fp8_e5m2")
    # A format that the route does not admit is nobody's switch.
    assert "attention_decode" not in operator_states.off(switched(), [{}], "fp8_e4m3")


def test_a_kernel_that_no_gpu_has_proven_is_told_as_such() -> None:
    facts = replace(V100, kernels=EVERY - {"gdn_prefill"}, awaiting=frozenset({"gdn_prefill"}))
    state = routes.decide(facts, C32)["gdn_prefill"]
    assert (state.reason, state.details["not_built"]) == ("kernel_awaits_gpu:gdn_prefill", True)
    assert state.details["served_by"] == "reference"
    assert operator_states.off(ON, [operator_states.unusable(facts)]) == {
        "gdn_prefill": "kernel_awaits_gpu:gdn_prefill"
    }
