"""What becomes of each route: the order of reasons, switches, self-tests, strict mode, the log before graph capture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.acceleration.routes import NOT_BUILT, REFERENCE, ROUTES, UPSTREAM
from appliance.vllm_plugin.sm70 import admission, routes
from appliance.vllm_plugin.sm70.admission import View
from appliance.vllm_plugin.sm70.routes import Facts, RequirementError, decide
from appliance.vllm_plugin.sm70.selftest import SelfTest

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY = frozenset(name for route in ROUTES.values() for name in route.operators)
C32 = View(
    quantization="fp8",
    max_num_seqs=32,
    tensor_parallel_size=4,
    hidden_size=5120,
    num_attention_heads=24,
    num_key_value_heads=4,
    head_dim=256,
    linear_attention=True,
    cudagraph_mode="FULL_AND_PIECEWISE",
    captured=(1, 2, 4, 8, 16, 24, 32),
)
VOLTA = Facts(active=True, capability=(7, 0), kernels=EVERY, operators=EVERY)


@pytest.fixture
def undecided() -> Iterator[None]:
    """A process whose routes are not decided, before and after."""
    routes.adopt({})
    yield
    routes.adopt({})


def told(facts: Facts, view: View, name: str) -> tuple[str, str | None]:
    state = decide(facts, view)[name]
    return state.state, state.reason


def test_a_card_with_every_kernel_enables_what_the_configuration_admits() -> None:
    states = decide(VOLTA, C32)
    assert list(states) == list(ROUTES)
    on = {name for name, state in states.items() if state.state == "enabled"}
    assert {"attention_backend", "fp16_grouped_fp32", "dual_attention_b16", "fp8_dense", "gdn_decode"} <= on
    assert all(states[name].details["served_by"] == "kernel" for name in on - {"compile_cache"})
    assert (states["nvfp4_dense"].state, states["e4m3_grouped_fp32"].reason) == ("not_applicable", "kv_dtype")


def test_without_our_platform_no_route_applies() -> None:
    states = decide(replace(VOLTA, active=False), C32)
    assert {(state.state, state.reason) for state in states.values()} == {("not_applicable", "not_applicable")}


def test_an_operator_without_a_kernel_is_named_and_known_to_be_not_built() -> None:
    facts = replace(VOLTA, kernels=EVERY - {"attention_decode", "gdn_prefill"})
    states = decide(facts, C32)
    assert states["attention_backend"].reason == "operator_missing:attention_decode"
    assert states["attention_backend"].details | {} == {
        "capability": "reference",
        "not_built": True,
        "served_by": REFERENCE,
    }
    assert states["gdn_prefill"].details["served_by"] == REFERENCE
    assert states["gdn_decode"].state == "enabled"


def test_an_operator_that_should_be_there_and_is_not_counts_as_a_fault() -> None:
    facts = replace(VOLTA, kernels=EVERY - {"rms_norm"}, operators=EVERY - {"rms_norm"})
    state = decide(facts, C32)["gemma_rms_norm"]
    assert state.reason == "operator_missing:rms_norm"
    assert "not_built" not in state.details
    assert (state.details["capability"], state.details["served_by"]) == ("absent", UPSTREAM)


def test_on_a_cpu_the_references_serve_and_no_route_is_enabled() -> None:
    defined = EVERY - NOT_BUILT
    states = decide(Facts(active=True, operators=defined), replace(C32, enforce_eager=True))
    kernels = {name: state for name, state in states.items() if ROUTES[name].operators}
    assert not [name for name, state in kernels.items() if state.state == "enabled"]
    served = {name: state.details.get("served_by") for name, state in kernels.items()}
    assert served["gemma_rms_norm"] == served["fp8_dense"] == served["gdn_decode"] == REFERENCE
    assert served["all_reduce"] == UPSTREAM
    assert served["long_context"] == REFERENCE
    assert served["scalar_tail"] == "attention_backend"


def test_a_failed_self_test_falls_back_with_its_reason() -> None:
    failed = SelfTest("gated_rms_norm", False, "selftest_failed:gated_rms_norm", "case: other bits", 0.5, 3)
    passed = SelfTest("rms_norm", True, cases=4)
    facts = replace(VOLTA, selftests={"gated_rms_norm": failed, "rms_norm": passed})
    states = decide(facts, C32)
    assert states["gated_rms_norm"].reason == "selftest_failed:gated_rms_norm"
    assert states["gated_rms_norm"].details["served_by"] == UPSTREAM
    assert states["gated_rms_norm"].details["self_test"]["gated_rms_norm"]["detail"] == "case: other bits"
    assert states["gemma_rms_norm"].state == "enabled"
    assert states["gemma_rms_norm"].details["self_test"]["rms_norm"]["passed"] is True


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("profile qwen38", "silu_mul=False≠True"),
        ("command line over profile qwen38", "user_override"),
        ("environment APPLIANCE_VLLM_ADDITIONAL_CONFIG", "user_override"),
    ],
)
def test_a_switch_wins_and_tells_who_threw_it(source: str, reason: str) -> None:
    facts = replace(VOLTA, sources={"additional_config": source})
    state = decide(facts, replace(C32, switches={"silu_mul": False}))["silu_mul"]
    assert (state.state, state.reason, state.source) == ("disabled", reason, source)
    assert state.details["served_by"] == UPSTREAM


def test_a_switch_wins_over_what_the_configuration_does_not_admit() -> None:
    facts = replace(VOLTA, sources={"additional_config": "command line"})
    view = replace(C32, switches={"e4m3_grouped_fp32": False})
    assert told(facts, view, "e4m3_grouped_fp32") == ("disabled", "user_override")


def test_a_reason_of_the_configuration_has_the_source_of_its_argument() -> None:
    facts = replace(VOLTA, sources={"max_num_batched_tokens": "command line", "kv_cache_dtype": "config file x"})
    states = decide(facts, replace(C32, max_num_batched_tokens=6000))
    assert (states["q8000_prefill"].reason, states["q8000_prefill"].source) == ("budget<8000", "command line")
    assert (states["e4m3_prefix_bridge"].reason, states["e4m3_prefix_bridge"].source) == ("kv_dtype", "config file x")


@pytest.mark.parametrize(
    ("source", "reason"),
    [("vllm options", "user_override"), ("profile qwen38", "enforce_eager=True≠False")],
)
def test_eager_execution_is_a_persons_switch_or_the_profiles_contract(source: str, reason: str) -> None:
    facts = replace(VOLTA, sources={"enforce_eager": source})
    state = decide(facts, replace(C32, enforce_eager=True, captured=()))["compile_graph"]
    assert (state.reason, state.source) == (reason, source)


def test_the_c32_contract_holds_on_volta_alone() -> None:
    assert told(replace(VOLTA, capability=(9, 0)), C32, "dual_attention_b16") == (
        "disabled",
        "contract_mismatch:capability=9.0≠7.0",
    )


def test_a_batch_that_no_step_reaches_turns_the_dual_route_off() -> None:
    facts = replace(VOLTA, environment={admission.MIN_BATCH: "33"})
    state = decide(facts, C32)["dual_attention_b16"]
    assert (state.reason, state.source) == ("user_override", f"environment {admission.MIN_BATCH}")
    reached = replace(VOLTA, environment={admission.MIN_BATCH: "32"})
    assert told(reached, C32, "dual_attention_b16") == ("enabled", None)


def test_strict_mode_names_the_routes_in_one_line() -> None:
    states = decide(replace(VOLTA, kernels=EVERY - {"all_reduce_push"}), C32)
    expected = ("fp8_dense", "all_reduce", "e4m3_grouped_fp32")
    for off in ({}, {routes.STRICT: "0"}, {routes.STRICT: ""}):
        routes.require(states, expected, off)
    routes.require(states, ("fp8_dense",), {routes.STRICT: "1"})
    with pytest.raises(RequirementError) as error:
        routes.require(states, expected, {routes.STRICT: "1"})
    line = str(error.value)
    assert "all_reduce (operator_missing:all_reduce_push), e4m3_grouped_fp32 (kv_dtype)" in line
    assert "2 expected routes" in line
    assert "\n" not in line


def test_what_is_off_is_warned_of_before_graph_capture() -> None:
    states = decide(replace(VOLTA, kernels=EVERY - {"all_reduce_push"}), C32)
    defaults = admission.c32_defaults(C32, (7, 0), {})
    lines = routes.log_lines(states, ("fp8_dense", "all_reduce"), C32, defaults)
    assert lines[0] == ("info", "SM70 routes: 1 of 2 expected ones are on: fp8_dense")
    assert ("info", f"SM70 switches: {admission.MIN_BATCH}=16 (default)") in lines
    assert [line for level, line in lines if level == "warning"] == [
        "SM70 route all_reduce is off: operator_missing:all_reduce_push (default); upstream serves"
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("auto", "is stored in FP16"),
        ("fp8", "is stored as E4M3 with the checkpoint's scales, 1.0 where it has none; fp8 means E4M3 here"),
        ("fp8_e4m3", "is stored as E4M3 with the checkpoint's scales, 1.0 where it has none"),
        ("fp8_e5m2", "is stored as E5M2 without scales, because fp8_e5m2 was asked for"),
    ],
)
def test_the_kv_cache_says_what_it_is(asked: str, words: str) -> None:
    assert f"--kv-cache-dtype {asked} {words}" in routes.kv_line(replace(C32, kv_cache_dtype=asked))


@pytest.mark.parametrize(
    ("switches", "environment", "words"),
    [
        ({"silu_mull": False}, {}, 'sm70.silu_mull is no switch; did you mean "silu_mul"?'),
        ({"silu_mul": 0}, {}, "sm70.silu_mul is 0; wanted is true or false"),
        ({}, {admission.MIN_BATCH: "many"}, 'is "many"; wanted is a number of sequences'),
        ({}, {admission.MIN_BATCH: "0"}, 'is "0"; wanted is a number of sequences'),
    ],
)
def test_switches_that_are_wrong_are_refused(switches: dict[str, Any], environment: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=r"^(additional_config|environment)") as error:
        routes.check_switches(switches, environment)
    assert words in str(error.value)


def test_switches_of_the_profiles_are_known() -> None:
    from appliance.profiles import catalogue

    for profile in catalogue.load_all():
        routes.check_switches(profile.switches, {})


@pytest.mark.usefixtures("undecided")
def test_whoever_binds_asks_what_was_decided() -> None:
    with pytest.raises(RuntimeError, match="before this process decided"):
        routes.enabled("fp8_dense")
    routes.adopt(decide(replace(VOLTA, kernels=EVERY - {"gdn_prefill"}), C32))
    assert routes.enabled("fp8_dense")
    assert not routes.enabled("gdn_prefill")
    assert (routes.served_by("fp8_dense"), routes.served_by("gdn_prefill")) == ("kernel", REFERENCE)
    with pytest.raises(KeyError):
        routes.enabled("fp9_dense")
