"""States and reasons of routes, and the report that acceleration.json and GET /v1/sm70/acceleration carry.

Reasons are read by machines: a reason here never changes its spelling.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from appliance.acceleration.routes import ROUTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

State = Literal["enabled", "disabled", "not_applicable"]

NOT_APPLICABLE = "not_applicable"
USER_OVERRIDE = "user_override"
KV_DTYPE = "kv_dtype"
PAGE_SIZE = "page_size"
PAGE_ALIGNMENT = "page_alignment"
HEAD_DIM = "head_dim"
NOT_BUILT = "not_built"
"""A route's detail, true where its reason is an operator that this build does not have on any card."""
COMPILE_CACHE_DISABLED = "compile_cache_disabled"
NOT_REPORTED = "not_reported"
"""No rank has told yet what became of the route: the engine is still loading."""
WARM_TOKENS_DIFFER = "warm_tokens_differ"
"""Compiled code of an earlier start gave other greedy tokens than that start: it was dropped, and compiled anew."""


def budget_below(tokens: int) -> str:
    """`budget<8000`: the prefill budget (max_num_batched_tokens) is below what the route needs."""
    return f"budget<{tokens}"


def unequal(field_name: str, actual: object, expected: object) -> str:
    """`num_speculative_tokens=5≠7`, `method=None≠dflash`: a setting is not what the route needs."""
    return f"{field_name}={actual}≠{expected}"


def contract_mismatch(field_name: str, actual: object, expected: object) -> str:
    """`contract_mismatch:hidden_size=4096≠5120`: the model is not the one that the route was proven on."""
    return f"contract_mismatch:{unequal(field_name, actual, expected)}"


def cache_unusable(why: str) -> str:
    """`cache_read_only`, `cache_disk_full`: the compile cache cannot be used, in the words of appliance.cache."""
    return f"cache_{why}"


def operator_missing(operator: str) -> str:
    """`operator_missing:OP`: the kernel package lacks the operator."""
    return f"operator_missing:{operator}"


def kernel_awaits_gpu(operator: str) -> str:
    """`kernel_awaits_gpu:OP`: the operator's kernel is built, and no GPU has proven it yet."""
    return f"kernel_awaits_gpu:{operator}"


def selftest_failed(operator: str) -> str:
    """`selftest_failed:OP`: the operator disagreed with its reference, or with itself, on this card."""
    return f"selftest_failed:{operator}"


def ranks_differ(odd: Mapping[int, str]) -> str:
    """`ranks_differ:2=selftest_failed:OP,3=kv_dtype`: these ranks are not in the state that the others are in."""
    return "ranks_differ:" + ",".join(f"{rank}={told}" for rank, told in sorted(odd.items()))


@dataclass(frozen=True)
class RouteState:
    """What became of one route. `source` says where its switch was set, in the plan's terms."""

    state: State
    reason: str | None = None
    source: str = "default"
    details: dict[str, Any] = field(default_factory=dict)
    """What the ranks add: self-test result, chosen tactic, resident bytes, dispatch counters."""

    def __post_init__(self) -> None:
        if (self.state == "enabled") is not (self.reason is None):
            raise ValueError(f"a route has a reason exactly where it is not enabled: {self.state}, {self.reason}")


def report(
    profile: str, expected: Iterable[str], states: dict[str, RouteState], rehearsal: str | None = None
) -> dict[str, Any]:
    """Return the report: every route of the table with its state, and which expected ones are off.

    `expected` are the names that the profile requires; only these count as missing. `rehearsal` is the plan's line
    that the machine is no V100's. Raises ValueError where a route has no state, or a name is not in the table.
    """
    expected = tuple(expected)
    unknown = sorted({*expected, *states} - ROUTES.keys())
    absent = sorted(ROUTES.keys() - states.keys())
    if unknown or absent:
        raise ValueError(f"routes unknown to the table: {unknown}; routes without a state: {absent}")
    missing = [name for name in expected if states[name].state != "enabled"]
    return {
        "schema": 1,
        "profile": profile,
        "rehearsal": rehearsal,
        "expected_acceleration": list(expected),
        "enabled": len(expected) - len(missing),
        "expected": len(expected),
        "missing": {name: states[name].reason for name in missing},
        "routes": {
            name: {"title": route.title, "replaces": route.replaces, "switch": route.switch, **asdict(states[name])}
            for name, route in ROUTES.items()
        },
    }


def all_not_applicable(profile: str) -> dict[str, Any]:
    """Return the report of an engine that has no SM70 route at all, such as the CPU engine."""
    state = RouteState("not_applicable", NOT_APPLICABLE)
    return report(profile, (), dict.fromkeys(ROUTES, state))
