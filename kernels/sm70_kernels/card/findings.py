"""What timed candidates say of the model: order, error, and what a table would do otherwise. Pure, no torch."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from sm70_kernels.tuning.alike import first_of_the_best

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Timed:
    """A trial after it was timed: candidates by kernel name, their µs, and the µs predicted of each.

    `predicted` are with the model's own constants, `with_card` with those that this card gave.
    """

    family: str
    what: str
    kernels: tuple[str, ...]
    microseconds: tuple[float, ...]
    predicted: tuple[float, ...]
    with_card: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well the model does in one family; `error` is predicted over timed, less one, gaps between kernels included.

    `order` is the mean rank correlation within trials of three candidates and more, `order_of_all` that over every
    candidate of the family, both None where there are too few. `lost` is the greatest share of time that the candidate
    predicted fastest takes over the fastest timed.
    """

    family: str
    candidates: int
    order: float | None
    order_of_all: float | None
    error: float
    least_error: float
    greatest_error: float
    lost: float


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties sharing a rank; None for fewer than three or for equal values alone."""
    if len(one) < 3:
        return None
    try:
        return statistics.correlation(_ranks(one), _ranks(other))
    except statistics.StatisticsError:
        return None


def agreements(timed: Iterable[Timed], *, with_card: bool) -> tuple[Agreement, ...]:
    """Return the agreement of each family, with the model's own constants or the card's."""
    ordered = sorted(timed, key=lambda each: each.family)
    return tuple(
        _agreement(family, list(trials), with_card) for family, trials in groupby(ordered, lambda each: each.family)
    )


def changes(timed: Iterable[Timed]) -> tuple[str, ...]:
    """Return a line for each trial whose first candidate, the table's choice, is at least 3 % slower than the best."""
    lines = []
    for each in timed:
        best = first_of_the_best(each.microseconds)
        if best:
            own, other = each.microseconds[0], each.microseconds[best]
            lines.append(
                f"{each.family} {each.what}: {each.kernels[best]} takes {other:.2f} µs, the table's "
                f"{each.kernels[0]} {own:.2f} µs ({own / other - 1:+.1%})"
            )
    return tuple(lines)


def _agreement(family: str, trials: Sequence[Timed], with_card: bool) -> Agreement:
    guesses = [each.with_card if with_card else each.predicted for each in trials]
    orders = [rank_correlation(guess, each.microseconds) for guess, each in zip(guesses, trials, strict=True)]
    known = [order for order in orders if order is not None]
    predicted = [us for guess in guesses for us in guess]
    seen = [us for each in trials for us in each.microseconds]
    errors = [one / other - 1 for one, other in zip(predicted, seen, strict=True)]
    lost = max(
        each.microseconds[guess.index(min(guess))] / min(each.microseconds) - 1
        for guess, each in zip(guesses, trials, strict=True)
    )
    return Agreement(
        family,
        len(seen),
        round(statistics.fmean(known), 3) if known else None,
        None if (order := rank_correlation(predicted, seen)) is None else round(order, 3),
        round(statistics.median(errors), 4),
        round(min(errors), 4),
        round(max(errors), 4),
        round(lost, 4),
    )


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2 for value in values
    ]
