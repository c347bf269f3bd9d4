"""What a comparison allows to be said about a target, and no more.

A miss is a miss however small; a win that is smaller than what repeats differ by is called that; contracts that differ
and failed requests allow no claim at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from appliance.bench.compare import Comparison, Line

Outcome = Literal["reached", "not_robust", "missed", "slower", "differing_contracts", "failures", "nothing_shared"]

UNITS = {"_ms": "ms", "_tokens_per_s": "tokens/s", "requests_per_s": "requests/s"}

MOST_DIGITS = 9

FEW = 100
"""Samples below which a verdict says how few it rests on."""

ARITHMETIC = 1e-12
"""What floating point may put between a figure at its limit and the limit, as a share."""


@dataclass(frozen=True)
class Target:
    """What the headline must reach: `limit` is the most of a time, the least of a rate. All in the headline's unit."""

    wanted: float
    """How much higher the rate must be: 0.1 for 10%."""
    limit: float
    margin: float
    """What lies between the figure and the limit; negative where the limit is missed."""

    @property
    def reached(self) -> bool:
        """Whether the figure is at the limit or beyond it. No figure is rounded before."""
        return self.margin >= 0


@dataclass(frozen=True)
class Verdict:
    """`words` are whole sentences. `reached` is the only outcome that counts as passed."""

    outcome: Outcome
    words: tuple[str, ...]
    target: Target | None = None
    orientation: tuple[str, ...] = ()
    """What the figures would say if a claim could be made of them; told where a person asks for it alone."""

    @property
    def passed(self) -> bool:
        """Whether the target may be claimed."""
        return self.outcome == "reached"


def target(line: Line, wanted: float) -> Target:
    """Return what `line` must reach for a rate higher by `wanted`."""
    limit = line.reference / (1.0 + wanted) if line.is_time else line.reference * (1.0 + wanted)
    margin = limit - line.subject if line.is_time else line.subject - limit
    return Target(wanted, limit, 0.0 if math.isclose(limit, line.subject, rel_tol=ARITHMETIC) else margin)


def judge(comparison: Comparison, wanted: float) -> Verdict:
    """Return the verdict on a rate higher by `wanted` (0.1: 10%)."""
    line, sides = comparison.headline, (comparison.subject, comparison.reference)
    told: tuple[str, ...] = ("They share no figure to judge by.",)
    outcome: Outcome = "nothing_shared"
    aim = None
    if line is not None:
        aim = target(line, wanted)
        outcome, told = _measured(comparison, line, aim)
    if comparison.workload:
        differ = ", ".join(map(str, comparison.workload))
        return Verdict("differing_contracts", (f"No claim: the contracts differ in {differ}.",), aim, told)
    if lost := [f"{side.failed} of {side.name}" for side in sides if side.failed]:
        return Verdict("failures", (f"No claim: requests failed, {' and '.join(lost)}.",), aim, told)
    if unsound := [f"{side.name}: {', '.join(side.unsound)}" for side in sides if side.unsound]:
        return Verdict("failures", (f"No claim: not sound is {' and '.join(unsound)}.",), aim, told)
    return Verdict(outcome, (*told, *_caveats(comparison)), aim)


def _measured(comparison: Comparison, line: Line, aim: Target) -> tuple[Outcome, tuple[str, ...]]:
    value, limit = apart(line.subject, aim.limit)
    unit, bound = unit_of(line), "at most" if line.is_time else "at least"
    found = _found(line, comparison.reference.name, aim.wanted)
    asked = f"{100 * aim.wanted:g}% higher means {bound} {limit} {unit}, and it is {value} {unit}"
    if not aim.reached:
        still = (line.subject / aim.limit if line.is_time else aim.limit / line.subject) - 1.0
        missed = f"Missed by {significant(-aim.margin)} {unit}: {asked}."
        more = f"It would take a rate that is {percent(still)} higher still."
        return ("missed" if line.gain > 0 else "slower"), (found, missed, more)
    reached = f"Reached with {significant(aim.margin)} {unit} to spare: {asked}."
    means = comparison.subject.repeats.get(line.key[0], ())
    if len(means) < 2:
        return "reached", (found, reached, "How far repeats lie apart is not known.")
    spread = max(means) - min(means)
    lie = f"the means of its repeats lie {significant(spread)} {unit} apart"
    if spread > aim.margin:
        return "not_robust", (found, reached, f"Not robust: {lie}, which is more.")
    return "reached", (found, reached, f"{lie.capitalize()}.")


def _found(line: Line, reference: str, wanted: float) -> str:
    if line.gain == 0:
        return f"The rate is that of {reference}."
    share, _ = apart(100 * abs(line.gain), 100 * wanted, 2)
    if float(share) == 0:
        share = significant(100 * abs(line.gain))
    return f"The rate is {share}% {'higher' if line.gain > 0 else 'lower'} than that of {reference}."


def _caveats(comparison: Comparison) -> list[str]:
    words = [
        f"{side.name} is a screen and no acceptance run: {side.screen}."
        for side in (comparison.subject, comparison.reference)
        if side.screen
    ]
    metric = comparison.headline.key[0] if comparison.headline else ""
    words += [
        f"{side.name} rests on {count} sample{'s' * (count > 1)} alone."
        for side in (comparison.subject, comparison.reference)
        if 0 < (count := side.counts.get(metric, 0)) < FEW
    ]
    if comparison.untold:
        parts = ", ".join(each.part for each in comparison.untold)
        words.append(f"Whether the contracts agree is not known of: {parts}.")
    if comparison.system:
        words.append(f"Two systems are compared; they differ in {', '.join(map(str, comparison.system))}.")
    return words


def unit_of(line: Line) -> str:
    """The unit of a line's figures."""
    if line.is_share:
        return "of all"
    return next(unit for end, unit in UNITS.items() if line.key[0].endswith(end))


def percent(share: float) -> str:
    """Return a share in percent, with two digits or as many as keep it from looking like nothing."""
    return f"{significant(100 * share, 2)}%"


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` after the point, or more where all of them would be zeros."""
    while value and digits < MOST_DIGITS and float(f"{value:.{digits}f}") == 0:
        digits += 1
    return f"{value:.{digits}f}"


def apart(value: float, other: float, digits: int = 3) -> tuple[str, str]:
    """Return both with as many digits as it takes to tell them apart, so that a miss never looks like a hit."""
    while value != other and digits < MOST_DIGITS and f"{value:.{digits}f}" == f"{other:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f}", f"{other:.{digits}f}"
