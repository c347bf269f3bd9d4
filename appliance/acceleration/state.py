"""What becomes of each route in this engine. Pure, and importable without vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.acceleration import report
from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import ROUTES
from appliance.rundir.plan import SourcedValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from appliance.rundir.cache_start import CacheStart
    from appliance.rundir.plan import PlanRecord

BOUND = frozenset({"compile_graph", "compile_cache"})
"""The routes that this build can bind: vLLM's own compilation. No SM70 operator is bound by its plugin yet."""


def unbound(expected: Iterable[str]) -> tuple[str, ...]:
    """Return those of the expected routes that this build cannot bind on any card."""
    return tuple(name for name in expected if name not in BOUND)


def state_of_routes(
    *, cuda: bool, plan: PlanRecord, environment: Mapping[str, str], cache: CacheStart | None = None
) -> dict[str, Any]:
    """Return the report for acceleration.json. `plan` is empty where no plan was made.

    `cache` is None where nothing keeps the compile cache.
    """
    profile = plan.profile or "none"
    if not cuda:
        return report.all_not_applicable(profile)
    states = {name: RouteState("disabled", report.operator_missing(name)) for name in ROUTES if name not in BOUND}
    states["compile_graph"] = _compile_graph(plan)
    states["compile_cache"] = _compile_cache(environment, cache)
    return report.report(profile, plan.expected_acceleration or (), states)


def _compile_graph(plan: PlanRecord) -> RouteState:
    eager = (plan.arguments or {}).get("enforce_eager", SourcedValue(source="default"))
    source = eager.source
    if not eager.value:
        return RouteState("enabled", source=source)
    ours = source.startswith(("default", "profile", "derived"))
    reason = report.unequal("enforce_eager", actual=True, expected=False) if ours else report.USER_OVERRIDE
    return RouteState("disabled", reason, source)


def _compile_cache(environment: Mapping[str, str], cache: CacheStart | None) -> RouteState:
    name = ROUTES["compile_cache"].switch
    given = environment.get(name, "0")
    source = "default" if given == "0" else f"environment {name}"
    if cache is None:
        return RouteState("enabled") if given == "0" else RouteState("disabled", report.COMPILE_CACHE_DISABLED, source)
    reason = cache.reason or "unknown"
    details = {"state": cache.state, "reason": cache.reason, "key": cache.key, "rebuilt": cache.rebuilt}
    if cache.enabled and reason != report.WARM_TOKENS_DIFFER:
        return RouteState("enabled", source=source, details=details)
    plain = (report.USER_OVERRIDE, report.COMPILE_CACHE_DISABLED, report.WARM_TOKENS_DIFFER)
    return RouteState("disabled", reason if reason in plain else report.cache_unusable(reason), source, details)
