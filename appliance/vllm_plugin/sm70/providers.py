"""Who computes a layer's core on this card: our kernel, else upstream's Triton kernel if it holds, else the reference.

Each choice is made once a process and kept with its reason, for the report.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from appliance.acceleration import report
from appliance.acceleration.routes import OWNER, ROUTES
from appliance.vllm_plugin.sm70 import operators, rank_report, routes

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Tensors = tuple[torch.Tensor, ...]

Provider = Literal["kernel", "triton", "reference"]
"""Ours, upstream's, plain torch; calls are counted by these names too."""

logger = logging.getLogger("vllm.appliance.sm70")


@dataclass(frozen=True, slots=True)
class Choice:
    """Who serves an operator, and why nobody faster does (empty for our own kernel)."""

    operator: str
    provider: Provider
    reason: str


_CHOICES: dict[str, Choice] = {}


def choose(operator: str, *, kernel: bool, off: str, cuda: bool, triton: Callable[[], str] | None) -> Choice:
    """Return the choice for an operator.

    `off` is why its kernel is not to serve, empty where it may. `triton` tries upstream's kernel and returns why not,
    empty where it holds.
    """
    if not cuda:
        return Choice(operator, "reference", "no CUDA device: the reference is the CPU's path")
    if kernel and not off:
        return Choice(operator, "kernel", "")
    told = kernel or off == report.kernel_awaits_gpu(operator)
    why = off if told else "no kernel of ours in this build"
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
        made = [_CHOICES[name].provider for name in ROUTES[route].operators if name in _CHOICES]
        if len(made) == len(ROUTES[route].operators) and "triton" in made and "reference" not in made:
            rank_report.note(route, served_by="triton")
    return choice


def forget() -> None:
    """Choose anew from now on: another engine begins in this process."""
    _CHOICES.clear()


def bind(operator: str, triton: Callable[[], str] | None = None) -> Choice:
    """Return who serves an operator in this process, chosen on the first call; see `choose` for `triton`."""
    made = _CHOICES.get(operator)
    if made is not None:
        return made
    from vllm.platforms import current_platform

    cuda = bool(current_platform.is_cuda())
    kernel = operators.has_kernel(operator)
    choice = choose(operator, kernel=kernel, off=routes.operator_off(operator), cuda=cuda, triton=triton)
    return keep(choice, OWNER[operator])


def differs(
    reference: Callable[[], Tensors], candidate: Callable[[], Tensors], tolerance: Callable[[torch.Tensor], float]
) -> str:
    """Run upstream's kernel twice on the current GPU beside the reference; return why it cannot serve, else nothing.

    `tolerance` gives the greatest absolute difference that a result of the reference allows.
    """
    try:
        wanted, got, again = reference(), candidate(), candidate()
    except Exception as error:  # noqa: BLE001 - a compiler's errors have no common class
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    for number, (one, two, right) in enumerate(zip(got, again, wanted, strict=True)):
        if not (one == two).all():
            return f"result {number} differs between two runs"
        difference, allowed = float((one.float() - right.float()).abs().max()), tolerance(right)
        if not difference <= allowed:
            return f"result {number} is off the reference by {difference:.1e}; {allowed:.1e} is allowed"
    return ""
