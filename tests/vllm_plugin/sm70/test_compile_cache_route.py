"""What the report says of the route `compile_cache`, out of cache.json."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.rundir.cache_start import CacheStart
from appliance.rundir.plan import PlanRecord
from appliance.vllm_plugin.sm70.routes import before_load


def route(cache: dict[str, Any] | None, **environment: str) -> dict[str, Any]:
    start = None if cache is None else CacheStart.from_json(cache)
    report = before_load(active=True, plan=PlanRecord(), environment=environment, cache=start)
    return dict(report["routes"]["compile_cache"])


@pytest.mark.parametrize(
    ("cache", "state", "reason"),
    [
        ({"enabled": True, "state": "warm", "reason": "verified"}, "enabled", None),
        ({"enabled": True, "state": "cold", "reason": "file_changed"}, "enabled", None),
        ({"enabled": True, "state": "cold", "reason": "warm_tokens_differ"}, "disabled", "warm_tokens_differ"),
        ({"enabled": False, "state": "off", "reason": "warm_tokens_differ"}, "disabled", "warm_tokens_differ"),
        ({"enabled": False, "state": "off", "reason": "user_override"}, "disabled", "user_override"),
        ({"enabled": False, "state": "off", "reason": "compile_cache_disabled"}, "disabled", "compile_cache_disabled"),
        ({"enabled": False, "state": "off", "reason": "read_only"}, "disabled", "cache_read_only"),
        ({"enabled": False, "state": "off", "reason": "rebuilt_too_often"}, "disabled", "cache_rebuilt_too_often"),
        ({"schema": 1}, "disabled", "cache_unknown"),
    ],
)
def test_the_reason_is_a_stable_word(cache: dict[str, Any], state: str, reason: str | None) -> None:
    found = route(cache)
    assert (found["state"], found["reason"], found["source"]) == (state, reason, "default")
    assert found["details"]["state"] == cache.get("state")


def test_the_switch_is_named_as_the_source() -> None:
    found = route({"enabled": False, "state": "off", "reason": "user_override"}, VLLM_DISABLE_COMPILE_CACHE="1")
    assert found["source"] == "environment VLLM_DISABLE_COMPILE_CACHE"


def test_an_engine_without_a_guardian_has_only_the_switch() -> None:
    assert route(None)["state"] == "enabled"
    assert route(None, VLLM_DISABLE_COMPILE_CACHE="1")["reason"] == "compile_cache_disabled"
