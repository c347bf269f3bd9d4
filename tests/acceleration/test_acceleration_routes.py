"""The route table and the report that is made from it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from appliance.acceleration import report as words
from appliance.acceleration.report import RouteState, all_not_applicable, report
from appliance.acceleration.routes import ROUTES
from appliance.profiles import catalogue


def states(**changed: RouteState) -> dict[str, RouteState]:
    return {**dict.fromkeys(ROUTES, RouteState("enabled")), **changed}


def test_reasons_keep_their_spelling() -> None:
    assert words.budget_below(8000) == "budget<8000"
    assert words.unequal("num_speculative_tokens", 5, 7) == "num_speculative_tokens=5≠7"
    assert words.unequal("method", None, "dflash") == "method=None≠dflash"
    assert words.contract_mismatch("hidden_size", 4096, 5120) == "contract_mismatch:hidden_size=4096≠5120"
    assert words.operator_missing("sm70::fp8_dense") == "operator_missing:sm70::fp8_dense"
    assert words.selftest_failed("sm70::fp8_dense") == "selftest_failed:sm70::fp8_dense"


def test_every_route_is_expected_by_a_profile_or_optional() -> None:
    expected = {name for profile in catalogue.load_all() for name in profile.expected_acceleration}
    assert {name for name, route in ROUTES.items() if not route.optional} <= expected


def test_report_lists_every_route_and_what_is_missing() -> None:
    off = RouteState("disabled", words.budget_below(8000), "command line", {"resident_bytes": 0})
    found = report("p", ["fp8_dense", "q8000_prefill"], states(q8000_prefill=off, gdn_decode=off))
    assert list(found["routes"]) == list(ROUTES)
    assert found["missing"] == {"q8000_prefill": "budget<8000"}
    assert (found["enabled"], found["expected"]) == (1, 2)
    assert found["routes"]["q8000_prefill"]["source"] == "command line"
    assert found["routes"]["fp8_dense"]["switch"] == "fp8_dense"


def test_a_report_says_that_its_start_is_a_rehearsal() -> None:
    assert report("p", (), states(), "rehearsal: on another card")["rehearsal"] == "rehearsal: on another card"
    assert report("p", (), states())["rehearsal"] is None


def test_on_the_cpu_engine_no_route_applies_and_none_is_missed() -> None:
    found = all_not_applicable("portable_smollm2")
    assert {(route["state"], route["reason"]) for route in found["routes"].values()} == {
        ("not_applicable", "not_applicable")
    }
    assert found["missing"] == {}


def test_a_report_with_a_hole_is_refused() -> None:
    with pytest.raises(ValueError, match="routes without a state"):
        report("p", [], {"fp8_dense": RouteState("enabled")})
    with pytest.raises(ValueError, match="unknown to the table"):
        report("p", ["fp9_dense"], states())


def test_only_what_is_off_has_a_reason() -> None:
    with pytest.raises(ValueError, match="exactly where it is not enabled"):
        RouteState("disabled")
    with pytest.raises(ValueError, match="exactly where it is not enabled"):
        RouteState("enabled", words.KV_DTYPE)


def test_the_engine_can_import_it_with_the_standard_library_alone() -> None:
    code = "import sys, appliance.acceleration.report; print({m.split('.')[0] for m in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"pydantic", "yaml", "torch", "vllm"} & set(loaded.replace("'", " ").split())
