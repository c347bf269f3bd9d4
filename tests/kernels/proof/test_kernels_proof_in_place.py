"""Proof of operators that change an argument: pages with gaps between them, all else in which must keep its bits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.cases import Case
from sm70_kernels.proof.prove import prove
from sm70_kernels.proof.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")
CASE = Case("append", {"rows": 3})
PAGES, WIDTH, GAP = 6, 16, 8
TURNS = itertools.count()


def inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    rows = case.sizes["rows"]
    numbers = torch.Generator("cpu").manual_seed(1)
    pages = torch.randn(PAGES, WIDTH + GAP, generator=numbers).half()[:, :WIDTH]
    return torch.randn(rows, WIDTH, generator=numbers).half().to(device), pages.to(device), torch.tensor([4, -1, 2])


def reference(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    """Add each row to the page that its slot names; a negative one names none."""
    for row, slot in zip(rows, slots.tolist(), strict=True):
        if slot >= 0:
            pages[slot] += row


def append(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    reference(rows, pages, slots)


def doubling(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    append(rows, pages, slots)
    return 2 * rows


def careless(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots)
    # The least change that a number can have, in a page of no sequence.
    pages[0, 5] = torch.nextafter(pages[0, 5].float(), torch.tensor(torch.inf)).half() + 1e-3


def padding(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots.abs())


def between(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots)
    pages.as_strided((1,), (1,), pages.storage_offset() + WIDTH).fill_(0)


def before(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots)
    pages.as_strided((1,), (1,), pages.storage_offset() - 1).fill_(0)


def behind(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots)
    pages.as_strided((1,), (1,), pages.storage_offset() + (PAGES - 1) * (WIDTH + GAP) + WIDTH).fill_(0)


def twice(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots)
    append(rows, pages, slots)


def hasty(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots)
    pages[4] += 1e-3 * (next(TURNS) % 2)


def near(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots)
    # 4e-3 of what was written, and half as much of the whole cache.
    pages[slots[slots >= 0]] *= 1.004


def greedy(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    append(rows, pages, slots)
    rows[0, 0] = 0


def subject(run: Callable[..., Any], wanted: Callable[..., Any] = reference, gate: float = 3e-3) -> Subject:
    return Subject("append", ("append",), inputs, run, wanted, lambda _: 0, gate, mutates=(1,))


def test_fresh_arguments_each_time_let_an_operator_add_to_one() -> None:
    outcome = prove(subject(append), CASE, CPU)
    assert outcome.passed, outcome.sentence()
    assert 0 < outcome.error < 1e-3


def test_what_is_returned_is_proven_beside_what_is_changed() -> None:
    assert prove(subject(doubling, doubling), CASE, CPU).passed
    shorter = prove(subject(append, doubling), CASE, CPU)
    assert shorter.sentence() == ("relative error inf above 3e-03; results of another shape than the reference's")


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (careless, "elements that no result belongs to were written"),
        (padding, "elements that no result belongs to were written"),
        (between, "bytes outside the results were written"),
        (before, "bytes outside the results were written"),
        (behind, "bytes outside the results were written"),
        (twice, "relative error"),
        (hasty, "results differ from run to run"),
        (near, "relative error 4.1"),
        (greedy, "arguments were changed"),
    ],
)
def test_a_wrong_change_is_caught(run: Callable[..., None], says: str) -> None:
    outcome = prove(subject(run), CASE, CPU)
    assert not outcome.passed
    assert outcome.sentence().startswith(says)


def test_a_reference_does_not_change_what_the_next_run_is_given() -> None:
    chosen = subject(append)
    whole = Subject("append", ("append",), inputs, append, reference, lambda _: 0, mutates=(1,))
    arguments = [each.double() if each.is_floating_point() else each for each in inputs(CASE, CPU)]
    (after,) = whole.wanted(arguments)
    assert torch.equal(arguments[1], inputs(CASE, CPU)[1].double())
    assert not torch.equal(after, arguments[1])
    assert torch.equal(chosen.results(arguments)[0], after)
