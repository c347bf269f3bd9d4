"""The gates on a CPU: what they would launch on a GPU, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm70_kernels.activation import operator as gates
from tests.kernels.recorded_launches import Launches, halves

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch, gates)


def test_gates_count_their_vectors(launches: Launches) -> None:
    gates._silu_and_mul(halves(3, 2 * 4352))
    gates._silu_and_mul(halves(3, 2 * 7))
    gates._sigmoid_gate(halves(5, 6, 256), halves(5, 6, 512)[..., 256:])
    assert launches.names == [
        "gate-threads256-width8-silu1",
        "gate-threads256-width1-silu1",
        "gate-threads256-width8-silu0",
    ]
    assert [grid for _, grid, *_ in launches] == [(3, 3, 1), (3, 1, 1), (5, 1, 1)]


def test_nothing_is_launched_for_no_tokens(launches: Launches) -> None:
    assert gates._silu_and_mul(halves(0, 64)).shape == (0, 32)
    assert gates._sigmoid_gate(halves(0, 6, 256), halves(0, 6, 256)).shape == (0, 6, 256)
    assert not launches


HEADS = halves(2, 3, 256)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: gates._silu_and_mul(halves(2, 7)), "wants float16 rows of an even number of elements"),
        (lambda: gates._sigmoid_gate(HEADS, HEADS[..., :8]), r"wants a gate float16\[2, 3, 256\]"),
    ],
)
def test_what_no_kernel_serves_is_refused(launches: Launches, call: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
    assert not launches
