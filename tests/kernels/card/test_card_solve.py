"""Constants are found again that the model itself was given; order and error of timed candidates by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sm70_kernels.card import findings, solve
from sm70_kernels.card.findings import Timed
from sm70_kernels.card.questions import QUESTIONS
from sm70_kernels.predict.constants import constants

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.needs("engine")

BY_NAME = {
    # A quarter of the length shows as much.
    question.constant: replace(question, lengths=(max(1, question.lengths[0] // 4), max(3, question.lengths[1] // 4)))
    for question in QUESTIONS
}


@pytest.fixture(autouse=True, scope="module")
def compiled_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what is compiled on first use out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SM70_KERNELS_CACHE", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shared", 20.0),
        ("l1", 40.0),
        ("l2", 180.0),
        ("dram", 700.0),
        ("shared_wavefront", 1.5),
        ("l1_wavefront", 1.3),
        ("hmma_step", 3.0),
        ("hmma_accumulate", 4.0),
        ("barrier", 35.0),
        ("fetch", 20.0),
        ("dram_bandwidth", 700.0),
        ("dram_loaded", 800.0),
    ],
)
def test_a_constant_is_found_by_the_kernel_that_hangs_on_it(name: str, value: float) -> None:
    question = BY_NAME[name]
    card = replace(constants(), **{name: value})
    seen = solve.difference(question, card)
    ((answer,), machine) = solve.answers([question], {name: [seen]}, constants())
    assert answer.note == ""
    assert answer.value == pytest.approx(value, rel=0.03)
    assert getattr(machine, name) == answer.value
    assert answer.own == getattr(constants(), name)


def test_every_question_has_a_test_above() -> None:
    marks = test_a_constant_is_found_by_the_kernel_that_hangs_on_it.pytestmark  # type: ignore[attr-defined]
    assert {name for mark in marks if mark.name == "parametrize" for name, _ in mark.args[1]} == BY_NAME.keys()


def test_ends_are_those_of_what_was_seen() -> None:
    question = BY_NAME["shared"]
    seen = [solve.difference(question, replace(constants(), shared=value)) for value in (25.0, 26.0, 30.0)]
    ((answer,), _) = solve.answers([question], {"shared": seen[::-1]}, constants())
    found = (answer.fast, answer.value, answer.slow)
    assert all(
        one is not None and one == pytest.approx(wanted, rel=0.03)
        for one, wanted in zip(found, (25, 26, 30), strict=True)
    )


def test_what_no_value_in_reach_predicts_is_said() -> None:
    question = BY_NAME["shared"]
    own = solve.difference(question, constants())
    ((answer,), machine) = solve.answers([question], {"shared": [100 * own]}, constants())
    assert (answer.value, answer.slow, answer.fast) == (None, None, None)
    assert answer.note.startswith("no value from 6.6 to 105.6 predicts ")
    assert machine == constants()


def test_a_bent_line_is_followed() -> None:
    for wanted in (2.0, 3.0, 7.0, 30.0):
        answer = solve.found(lambda value: max(10.0, value**1.5), 8.0, max(10.0, wanted**1.5))
        if wanted**1.5 > 10:
            assert answer is not None
            assert answer[0] == pytest.approx(wanted, rel=0.01)
    falling = solve.found(lambda value: 1 / value, 8.0, 1 / 5.0)
    assert falling is not None
    assert falling[0] == pytest.approx(5.0, rel=0.01)
    assert falling[1] < 0
    assert solve.found(lambda _: 4.0, 8.0, 4.0) is None


def timed(family: str, seen: tuple[float, ...], predicted: tuple[float, ...]) -> Timed:
    return Timed(family, "n=1", tuple("abcd"[: len(seen)]), seen, predicted, tuple(2 * each for each in predicted))


def test_ranks_are_correlated_as_spearman_does() -> None:
    assert findings.rank_correlation([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1)
    assert findings.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ranks 0 1 2 3 and 1 0 2 3: 1 - 6 * 2 / (4 * 15).
    assert findings.rank_correlation([1, 2, 3, 4], [2, 1, 3, 4]) == pytest.approx(0.8)
    # Ties share a rank: 0.5 0.5 2 against 0 1 2.
    assert findings.rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(0.75))
    assert findings.rank_correlation([1, 2], [1, 2]) is None
    assert findings.rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_families_are_summed_up_each_alone() -> None:
    every = [
        timed("dense", (10.0, 12.0, 11.0), (9.0, 12.0, 8.0)),
        timed("dense", (20.0, 22.0, 30.0), (20.0, 23.0, 30.0)),
        timed("norm", (5.0,), (4.0,)),
    ]
    dense, norm = findings.agreements(every, with_card=False)
    # Within trials: ranks 1 2 0 against 0 2 1, which is 0.5, and 1.
    assert (dense.family, dense.candidates, dense.order) == ("dense", 6, 0.75)
    assert dense.order_of_all == pytest.approx(0.943, abs=1e-3)
    # The candidate predicted fastest takes 11 where 10 could be had.
    assert dense.lost == 0.1
    assert (dense.least_error, dense.greatest_error) == (round(8 / 11 - 1, 4), round(23 / 22 - 1, 4))
    assert (norm.order, norm.order_of_all, norm.error, norm.lost) == (None, None, -0.2, 0.0)
    doubled = findings.agreements(every, with_card=True)
    assert [each.error for each in doubled] == [round(2 * (1 + each.error) - 1, 4) for each in (dense, norm)]


def test_a_change_is_told_from_three_percent_on() -> None:
    every = [timed("dense", (10.2, 10.0, 11.0), (9.0, 12.0, 8.0)), timed("dense", (12.0, 10.0, 9.9), (9.0, 9.0, 9.0))]
    assert findings.changes(every) == ("dense n=1: b takes 10.00 µs, the table's a 12.00 µs (+20.0%)",)
