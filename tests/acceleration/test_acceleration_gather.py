"""The report of several ranks: agreed, differing, silent, odd."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.acceleration import report
from appliance.acceleration.gather import gathered
from appliance.acceleration.routes import ROUTES
from appliance.rundir.rank_report import RankReport


def whole(*expected: str) -> dict[str, Any]:
    return report.report("any", expected, {name: report.RouteState("enabled") for name in ROUTES})


def rank(state: str = "enabled", reason: str | None = None, **details: Any) -> RankReport:
    return RankReport.from_json({"routes": {"gdn_decode": {"state": state, "reason": reason, "details": details}}})


def test_without_ranks_the_report_is_what_the_engine_wrote() -> None:
    written = whole("gdn_decode")
    assert gathered(written, {}, 4) == {
        **written,
        "ranks": [],
        "missing_ranks": [],
        "differing": {},
        "kernel_builds": {},
    }


def test_what_ranks_count_and_keep_is_told_by_rank() -> None:
    counts, kept = {"compile_graph.eager": 3, "odd": "x", "yes": True}, {"graphs": 1000}
    one = RankReport.from_json({"counters": counts, "resident_bytes": kept})
    assert RankReport.from_json(one.to_json()) == one
    found = gathered(whole(), {1: one, 0: rank()}, 2)
    assert found["counters"] == {"0": {}, "1": {"compile_graph.eager": 3}}
    assert found["resident_bytes"] == {"0": {}, "1": kept}


def test_ranks_that_agree_are_told_once_with_the_details_of_each() -> None:
    found = gathered(whole("gdn_decode"), {0: rank(dispatched=3), 1: rank(dispatched=4)}, 2)
    route = found["routes"]["gdn_decode"]
    assert (route["state"], route["reason"]) == ("enabled", None)
    assert route["details"]["ranks"] == {"0": {"dispatched": 3}, "1": {"dispatched": 4}}
    assert (found["ranks"], found["missing_ranks"], found["differing"]) == ([0, 1], [], {})
    assert (found["enabled"], found["expected"], found["missing"]) == (1, 1, {})
    assert "ranks" not in found["routes"]["silu_mul"]["details"]


def test_the_ranks_word_counts_more_than_the_api_processes() -> None:
    off = rank("disabled", "selftest_failed:gdn_decode")
    found = gathered(whole("gdn_decode"), {0: off, 1: off}, 2)
    assert found["missing"] == {"gdn_decode": "selftest_failed:gdn_decode"}
    assert (found["enabled"], found["differing"]) == (0, {})


def test_a_rank_that_differs_is_named_and_the_route_is_missing() -> None:
    ranks = {0: rank(), 1: rank(), 2: rank("disabled", "selftest_failed:gdn_decode"), 3: rank()}
    found = gathered(whole("gdn_decode", "silu_mul"), ranks, 4)
    reason = "ranks_differ:2=selftest_failed:gdn_decode"
    assert found["routes"]["gdn_decode"]["state"] == "disabled"
    assert found["missing"] == {"gdn_decode": reason}
    assert (found["enabled"], found["expected"]) == (1, 2)
    assert found["differing"]["gdn_decode"]["2"] == {"state": "disabled", "reason": "selftest_failed:gdn_decode"}


def test_the_lowest_rank_is_right_where_there_is_no_majority() -> None:
    found = gathered(whole(), {1: rank("not_applicable", "not_applicable"), 0: rank()}, 2)
    assert found["routes"]["gdn_decode"]["reason"] == "ranks_differ:1=not_applicable"


def test_a_rank_that_is_enabled_alone_is_named_by_its_state() -> None:
    off = rank("disabled", "kv_dtype")
    assert gathered(whole(), {0: off, 1: off, 2: rank()}, 3)["routes"]["gdn_decode"]["reason"] == (
        "ranks_differ:2=enabled"
    )


def test_silent_ranks_are_listed_once_any_has_spoken() -> None:
    assert gathered(whole(), {1: rank()}, 4)["missing_ranks"] == [0, 2, 3]


@pytest.mark.parametrize(
    "record", [{}, {"routes": 1}, {"routes": {"gdn_decode": None}}, {"routes": {"gdn_decode": {}}}]
)
def test_a_rank_that_says_nothing_of_a_route_changes_nothing(record: dict[str, Any]) -> None:
    assert gathered(whole(), {0: RankReport.from_json(record)}, 1)["routes"] == whole()["routes"]


def test_what_was_written_is_not_changed() -> None:
    written = whole("gdn_decode")
    gathered(written, {0: rank("disabled", "kv_dtype")}, 1)
    assert written == whole("gdn_decode")
