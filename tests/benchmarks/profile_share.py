"""What part of a profile is ours: the time in our functions, and in what they call of torch, numpy and Python itself.

A function of vLLM that ours calls is vLLM's time, with all below it, until it calls one of ours again. A function that
is neither counts to us by the part of it that ours called, directly or through others of its kind.
"""

from __future__ import annotations

import cProfile
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Kind = Literal["ours", "theirs", "neither"]
INSTANT = 1e-12
"""Seconds; less than any clock sees."""
ROUNDS = 30
"""Of handing shares on; calls among functions that are neither are not nested deeper."""


def shares(stats: Iterable[Any], kind: Callable[[str], Kind], cost: float = 0.0) -> dict[str, float]:
    """Return the part of ours by function, as `FILE:LINE NAME`, from `cProfile.Profile.getstats()`; 1 is the whole.

    `kind` is asked for a function's file, empty for one that is built in. `cost` is what profiling a call adds to it
    and its caller, in seconds; it is taken off.
    """
    entries = {entry.code: entry for entry in stats}
    kinds = {key: kind(file_of(key)) for key in entries}
    part = {key: 1.0 if kinds[key] == "ours" else 0.0 for key in entries}
    callers: dict[Any, list[tuple[Any, float]]] = {}
    for caller, entry in entries.items():
        for call in entry.calls or ():
            # A function without time of its own passes on what is below it by its calls.
            weight = max(call.inlinetime, 0.0) + INSTANT * call.callcount
            callers.setdefault(call.code, []).append((caller, weight))
    neither = [key for key in entries if kinds[key] == "neither"]
    for _ in range(ROUNDS):
        for key in neither:
            whole = sum(time for _, time in callers.get(key, ()))
            if whole:
                part[key] = sum(time * part[caller] for caller, time in callers[key]) / whole
    found: dict[str, float] = {}
    times = {key: max(entry.inlinetime - cost * entry.callcount, 0.0) for key, entry in entries.items()}
    whole = sum(times.values())
    for key, time in times.items():
        if time * part[key]:
            found[_label(key)] = found.get(_label(key), 0.0) + time * part[key] / whole
    return found


CALLS = 20_000


def profiling_cost(timer: Callable[[], float]) -> float:
    """Return the seconds that profiling one call of a Python function adds, by an empty one."""

    def empty() -> None:
        pass

    def many() -> None:
        for _ in range(CALLS):
            empty()

    def taken() -> float:
        began = timer()
        many()
        return timer() - began

    plain = min(taken() for _ in range(5))
    profile = cProfile.Profile(timer)
    seen = []
    for _ in range(5):
        profile.clear()
        profile.enable()
        many()
        profile.disable()
        times = [entry.inlinetime for entry in profile.getstats() if getattr(entry.code, "co_name", "") in NAMES]
        seen.append(sum(times))
    return max(min(seen) - plain, 0.0) / CALLS


NAMES = ("empty", "many")


def file_of(code: Any) -> str:
    """Return the file of a profile's code object, empty where it is a built-in function's name."""
    return "" if isinstance(code, str) else str(code.co_filename)


def _label(code: Any) -> str:
    return code if isinstance(code, str) else f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
