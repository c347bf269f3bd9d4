"""Who computes a layer's core on this card: our kernel, else upstream's Triton kernel if it holds, else the reference.

Each choice is made once a process and kept with its reason, for the report.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def keep(choice: Choice) -> Choice:
    """Remember a choice, and say it once."""
    if _CHOICES.get(choice.operator) != choice:
        _CHOICES[choice.operator] = choice
        because = f": {choice.reason}" if choice.reason else ""
        logger.info("%s is served by %s%s", choice.operator, choice.provider, because)
    return choice


def kept(operator: str) -> Choice | None:
    """Return the choice that was made for an operator in this process."""
    return _CHOICES.get(operator)


def choices() -> Mapping[str, Choice]:
    """Return every choice of this process by operator."""
    return dict(_CHOICES)


def switched_on(route: str) -> bool:
    """Say whether `additional_config["sm70"][route]` leaves a route on, by the configuration in force."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    switches = (config.additional_config or {}).get("sm70", {}) if config is not None else {}
    return bool(switches.get(route, True))
