"""The report of a whole engine: what its API process wrote, with what each rank says of the routes it runs. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from appliance.acceleration.report import ranks_differ

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.rundir.acceleration import RouteReport
    from appliance.rundir.rank_report import RankReport

Record = dict[str, Any]
Told = tuple[str, str | None]
"""State and reason of a route on one rank."""


def gathered(report: Record, ranks: Mapping[int, RankReport], world_size: int) -> Record:
    """Return `report` with the word of the ranks in it.

    A route of which ranks report is in the state that they agree on, with each one's details under
    `details.ranks.RANK`. Where they differ it is `disabled`, and the reason names the ranks that differ from the most
    (from the lowest rank where there is no majority). `ranks` of the answer lists who reported, `missing_ranks` who of
    `world_size` did not, once any has; `differing` has state and reason by route and rank,
    `kernel_builds` the SHA-256 of each rank's kernels, `counters` and `resident_bytes` those of each rank that reports.
    """
    routes = {name: dict(route) for name, route in report["routes"].items()}
    differing: dict[str, Record] = {}
    for name, route in routes.items():
        told = {rank: told for rank, record in sorted(ranks.items()) if (told := _route(record, name)) is not None}
        if not told:
            continue
        states = {rank: _state(one) for rank, one in told.items()}
        usual = _usual(states)
        route["state"], route["reason"] = usual
        odd = {rank: state for rank, state in states.items() if state != usual}
        if odd:
            route["state"] = "disabled"
            route["reason"] = ranks_differ({rank: reason or state for rank, (state, reason) in odd.items()})
            differing[name] = {
                str(rank): {"state": state, "reason": reason} for rank, (state, reason) in states.items()
            }
        own = {str(rank): one.details for rank, one in told.items()}
        route["details"] = {**(route.get("details") or {}), "ranks": own}
    expected = [name for name in report["expected_acceleration"] if name in routes]
    missing = {name: routes[name]["reason"] for name in expected if routes[name]["state"] != "enabled"}
    silent = [rank for rank in range(world_size) if rank not in ranks] if ranks else []
    return {
        **report,
        "enabled": len(expected) - len(missing),
        "expected": len(expected),
        "missing": missing,
        "routes": routes,
        "ranks": sorted(ranks),
        "missing_ranks": silent,
        "differing": differing,
        "kernel_builds": {str(rank): record.kernels for rank, record in sorted(ranks.items()) if record.kernels},
        **_figures(ranks),
    }


def _figures(ranks: Mapping[int, RankReport]) -> Record:
    """Counters and resident bytes by rank, once any has reported."""
    if not ranks:
        return {}
    return {
        "counters": {str(rank): record.counters for rank, record in sorted(ranks.items())},
        "resident_bytes": {str(rank): record.resident_bytes for rank, record in sorted(ranks.items())},
    }


def _route(record: RankReport, name: str) -> RouteReport | None:
    route = record.routes.get(name)
    return None if route is None or route.state is None else route


def _state(route: RouteReport) -> Told:
    return str(route.state), route.reason


def _usual(states: Mapping[int, Told]) -> Told:
    """What the most ranks say; of equals what the lowest rank says, which a Counter saw first."""
    return Counter(states.values()).most_common(1)[0][0]
