"""Who computes a layer's core on this card: our kernel, else upstream's Triton kernel if it holds, else the reference.

Each choice is made once a process and kept with its reason, for the report.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from appliance.vllm_plugin.sm70 import rank_report, routes

if TYPE_CHECKING:
    from collections.abc import Callable

Provider = Literal["sm70", "triton", "reference"]

logger = logging.getLogger("vllm.appliance.sm70")


@dataclass(frozen=True, slots=True)
class Choice:
    """Who serves an operator, and why nobody faster does (empty for our own kernel)."""

    operator: str
    provider: Provider
    reason: str


_CHOICES: dict[str, Choice] = {}


def choose(operator: str, *, kernel: bool, enabled: bool, cuda: bool, triton: Callable[[], str] | None) -> Choice:
    """Return the choice for an operator. `triton` tries upstream's kernel and returns why not, empty where it holds."""
    if not cuda:
        return Choice(operator, "reference", "no CUDA device: the reference is the CPU's path")
    if kernel and enabled:
        return Choice(operator, "sm70", "")
    why = "switched off" if kernel else "no kernel of ours in this build"
    if triton is None:
        return Choice(operator, "reference", f"{why}; upstream has no kernel that is usable on SM70")
    failed = triton()
    if not failed:
        return Choice(operator, "triton", why)
    return Choice(operator, "reference", f"{why}; upstream's Triton kernel: {failed}")


def keep(choice: Choice, route: str) -> Choice:
    """Remember a choice, say it once, and put it into the route's details in this rank's report."""
    if _CHOICES.get(choice.operator) != choice:
        _CHOICES[choice.operator] = choice
        because = f": {choice.reason}" if choice.reason else ""
        logger.info("%s is served by %s%s", choice.operator, choice.provider, because)
        rank_report.note(route, **{choice.operator: {"provider": choice.provider, "reason": choice.reason}})
    return choice


def kept(operator: str) -> Choice | None:
    """Return the choice that was made for an operator in this process."""
    return _CHOICES.get(operator)


def switched_on(route: str) -> bool:
    """Say whether a route is on, once this process has settled its routes; before, whatever is built counts as on."""
    states = routes.adopted()
    return not states or states[route].state == "enabled"


def counter(route: str, provider: Provider) -> str:
    """Return the name under which a route's calls are counted: its own for our kernel, else by who serves."""
    return route if provider == "sm70" else f"{route}.{provider}"
