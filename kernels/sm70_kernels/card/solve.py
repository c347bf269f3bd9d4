"""Find constants: the value of each with which the model predicts the difference that a card showed. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sm70_kernels.predict.prediction import predict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sm70_kernels.card.questions import Question
    from sm70_kernels.predict.constants import Constants

REACH = 4.0
"""A constant is looked for from a quarter of the model's value to four times it."""
DULL = 0.02
"""Where that whole range changes a prediction by no more than this share, the kernel does not hang on the constant."""
CLOSE = 1e-3
"""Relative difference between predicted and measured at which a search ends."""
_MOST_STEPS = 12


@dataclass(frozen=True, slots=True)
class Answer:
    """What a card said to one question.

    `measured` are the differences seen, in the question's unit, ascending; `predicted` is the model's with its own
    constant, `own`. `value`, `slow` and `fast` are the constant found from the median and from both ends, None where
    no value in reach predicts what was measured; `note` says so.
    """

    constant: str
    about: str
    kernel: str
    unit: str
    measured: tuple[float, ...]
    predicted: float
    own: float
    value: float | None
    slow: float | None
    fast: float | None
    note: str = ""


def difference(question: Question, machine: Constants) -> float:
    """Return the predicted difference between a question's long run and its short one, in its unit."""
    short, long = (
        predict(question.spec, question.launch(int(machine.sms), length), machine) for length in question.lengths
    )
    return long.us - short.us if question.unit == "us" else long.body_cycles - short.body_cycles


def found(predict: Callable[[float], float], own: float, measured: float) -> tuple[float, float] | None:
    """Return the value with which `predict`, monotonic either way, gives `measured`, and its change by a unit of that.

    None where no value in reach does. Differences are nearly straight in a constant, so a few steps along the chord
    find it; an end that stays is weighed half, as otherwise a bent line would hold it for ever.
    """
    low, high = own / REACH, own * REACH
    below, above = predict(low) - measured, predict(high) - measured
    span = above - below
    if abs(span) <= DULL * measured or below * above > 0:
        return None
    value = high
    for _ in range(_MOST_STEPS):
        value = (low * above - high * below) / (above - below)
        side = predict(value) - measured
        if abs(side) <= CLOSE * measured:
            break
        if side * below > 0:
            low, below, above = value, side, above / 2
        else:
            high, above, below = value, side, below / 2
    return value, own * (REACH - 1 / REACH) / span


def answers(
    questions: Sequence[Question], measured: Mapping[str, Sequence[float]], machine: Constants
) -> tuple[tuple[Answer, ...], Constants]:
    """Return the answers to questions, by measured differences of each constant, and the machine that they make."""
    given = []
    for question in questions:
        seen = sorted(measured[question.constant])
        answer = _answer(question, tuple(seen), machine)
        if answer.value is not None:
            machine = replace(machine, **{question.constant: answer.value})
        given.append(answer)
    return tuple(given), machine


def _answer(question: Question, seen: tuple[float, ...], machine: Constants) -> Answer:
    own: float = getattr(machine, question.constant)

    def predict(value: float) -> float:
        return difference(question, replace(machine, **{question.constant: value}))

    usual = seen[len(seen) // 2]
    answer = found(predict, own, usual)
    predicted, note = predict(own), ""
    value = slow = fast = None
    if answer is None:
        note = (
            f"no value from {own / REACH:.4g} to {own * REACH:.4g} predicts {usual:.4g} {question.unit}; "
            f"the model's {own:.4g} predicts {predicted:.4g}"
        )
    else:
        value, slope = answer
        slow, fast = (max(0.0, value + (end - usual) * slope) for end in (seen[-1], seen[0]))
    value, slow, fast = (None if each is None else round(each, 5) for each in (value, slow, fast))
    measured = tuple(round(each, 4) for each in seen)
    head = (question.constant, question.about, question.spec.name, question.unit)
    return Answer(*head, measured, round(predicted, 4), own, value, slow, fast, note)
