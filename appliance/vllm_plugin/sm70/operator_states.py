"""Which operators run their kernels in this process, and why the others do not. Pure.

An operator belongs to the first route of the table that names it. That route's switch and admission decide about it;
whether its own kernel is there and has passed the self-test, it decides for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.acceleration import report
from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import OWNER, ROUTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from appliance.vllm_plugin.sm70.routes import Facts

OF_AN_OPERATOR = ("operator_missing:", "kernel_awaits_gpu:", "selftest_failed:")
"""How reasons begin that are one operator's: the others of the route may serve."""

PAGES = ("kv_cache_write", "attention_decode")
"""Operators whose kernels share an order of pages that is not the references': both serve, or neither.

Prefill attention's kernel reads that order alone; its reference reads both.
"""

GROUPED = {"auto": "fp16_grouped_fp32", "fp8_e4m3": "e4m3_grouped_fp32"}
"""The route whose switch turns decode attention's kernel off, by the format of the KV cache."""


def unusable(facts: Facts) -> dict[str, str]:
    """Return the reason of every operator of the routes whose kernel cannot serve on this card."""
    found = {}
    for name in OWNER:
        test = facts.selftests.get(name)
        if name in facts.awaiting:
            found[name] = report.kernel_awaits_gpu(name)
        elif name not in facts.kernels:
            found[name] = report.operator_missing(name)
        elif test is not None and not test.passed:
            found[name] = test.reason
    return found


def off(
    states: Mapping[str, RouteState], every: Iterable[Mapping[str, str]], kv_format: str = "auto"
) -> dict[str, str]:
    """Return the reason of every operator whose kernel is not to run, given what is unusable on each rank."""
    every = tuple(every)
    found = {}
    for name, route in OWNER.items():
        state = states[route]
        theirs = next((each[name] for each in every if name in each), None)
        own = state.reason if state.state != "enabled" and not of_an_operator(state.reason) else None
        if own or theirs:
            found[name] = own or theirs or ""
    grouped = GROUPED.get(kv_format)
    if grouped and switched_off(grouped, states[grouped].reason):
        found.setdefault("attention_decode", states[grouped].reason or "")
    if reasons := [found[name] for name in PAGES if name in found]:
        found = dict.fromkeys((*PAGES, "attention_prefill"), reasons[0]) | found
    return found


def switched_off(route: str, reason: str | None) -> bool:
    """Say whether a route's reason is its switch."""
    return reason in (report.USER_OVERRIDE, report.unequal(ROUTES[route].switch, actual=False, expected=True))


def with_owners(states: Mapping[str, RouteState]) -> dict[str, RouteState]:
    """Return the states with each route off whose operator is another's that is off as a whole, for its reason."""
    found = dict(states)
    for name, state in states.items():
        owners = (states[OWNER[operator]] for operator in ROUTES[name].operators if OWNER[operator] != name)
        owner = next((each for each in owners if each.state == "disabled" and not of_an_operator(each.reason)), None)
        if state.state == "enabled" and owner is not None:
            details = state.details | {"served_by": ROUTES[name].fallback}
            found[name] = RouteState("disabled", owner.reason, owner.source, details)
    return found


def of_an_operator(reason: str | None) -> bool:
    """Say whether a route is off only because one of its operators has no kernel that may serve."""
    return (reason or "").startswith(OF_AN_OPERATOR)
