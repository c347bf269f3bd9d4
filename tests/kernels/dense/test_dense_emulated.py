"""The dense kernels' own source, run on the CPU thread by thread: right, and a row's bits are its own."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.cases import Case
from sm70_kernels.dense import operator as dense
from sm70_kernels.dense.table import Layer, Tactic, candidates, layer_of
from sm70_kernels.launch import workspace
from sm70_kernels.proof.prove import prove
from sm70_kernels.proof.subject import subjects
from tests.kernels.kernel_emulation import COMPILER, Emulator

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(autouse=True)
def on_the_cpu(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "launch", emulator.launch)
    monkeypatch.setattr(workspace, "_MADE", {CPU: torch.full((2**17,), 0xFF, dtype=torch.uint8)})


def checked(case: Case, run: Callable[..., torch.Tensor], emulator: Emulator, repeats: int = 2) -> None:
    """Prove a case, each time with another order of threads and blocks."""

    def reordered(*arguments: Any) -> torch.Tensor:
        emulator.seed += 1
        return run(*arguments)

    outcome = prove(dataclasses.replace(subjects()[case.operator], run=reordered), case, CPU, repeats)
    assert outcome.passed, outcome.sentence()


@pytest.mark.parametrize(
    ("operator", "sizes"),
    [
        ("dense_w8a16", {"rows": 1, "n": 80, "k": 600}),
        ("dense_w8a16", {"rows": 8, "n": 33, "k": 1025, "channel": 1}),
        ("dense_w8a16", {"rows": 13, "n": 300, "k": 600, "zeros": 1}),
        ("dense_w8a16", {"rows": 24, "n": 64, "k": 520, "gap": 8}),
        ("dense_w8a16", {"rows": 24, "n": 64, "k": 520, "gap": 1}),
        ("dense_w8a16", {"rows": 31, "n": 1, "k": 7}),
        ("dense_w8a16", {"rows": 64, "n": 100, "k": 1100}),
        ("dense_w8a16", {"rows": 97, "n": 100, "k": 520}),
        ("dense_w8a16_silu_mul", {"rows": 1, "n": 77, "k": 1100}),
        ("dense_w8a16_silu_mul", {"rows": 9, "n": 40, "k": 1100, "channel": 1}),
        ("dense_w8a16_silu_mul", {"rows": 48, "n": 150, "k": 600, "zeros": 1}),
        ("dense_w8a16_silu_mul", {"rows": 70, "n": 40, "k": 1100}),
    ],
    ids=str,
)
def test_a_layer_is_right(operator: str, sizes: dict[str, int], emulator: Emulator) -> None:
    checked(Case(operator, sizes), partial(dense._dense, operator), emulator)


@pytest.mark.parametrize(
    ("operator", "more"),
    [
        *((operator, {"k": 304}) for operator in ("dense_w8a16", "dense_w8a16_silu_mul")),
        *((operator, {"k": 136, "channel": 1}) for operator in ("dense_w8a16", "dense_w8a16_silu_mul")),
        # A gate and an up so small have no product in FP16.
        ("dense_w8a16", {"k": 512, "power": -12}),
    ],
    ids=str,
)
def test_expanded_weights_are_right_also_in_several_goes(
    operator: str, more: dict[str, int], emulator: Emulator
) -> None:
    def run(*arguments: Any) -> torch.Tensor:
        x, weight, scale, _, n, k, unit = arguments
        return dense.expanded(x, weight, scale, n, layer_of(n, k, operator == "dense_w8a16_silu_mul"), unit)

    # The workspace holds a few tiles of these layers.
    checked(Case(operator, {"rows": 70, "n": 150, **more}), run, emulator)


def given(layer: Layer, tactic: Tactic, *arguments: Any) -> torch.Tensor:
    x, weight, scale, counters, n, _, _ = arguments
    return dense.native(x, weight, scale, counters, n, layer, tactic)


FORMS = [
    *(("dense_w8a16", tactic) for tactic in ((1, 1, 2, 4, 1, 4, 64, 1), (3, 1, 2, 4, 1, 2, 64, 1))),
    *(("dense_w8a16", tactic) for tactic in ((4, 1, 2, 4, 1, 4, 32, 1), (2, 2, 4, 2, 1, 4, 32, 1))),
    *(("dense_w8a16", tactic) for tactic in ((1, 2, 8, 1, 1, 4, 64, 1), (6, 2, 4, 2, 2, 2, 32, 1))),
    ("dense_w8a16", (8, 2, 4, 1, 1, 2, 32, 2)),
    *(("dense_w8a16_silu_mul", tactic) for tactic in ((1, 2, 2, 4, 1, 2, 32, 2), (4, 2, 2, 4, 1, 2, 64, 1))),
    *(("dense_w8a16_silu_mul", tactic) for tactic in ((2, 2, 2, 4, 1, 4, 32, 1), (8, 2, 4, 2, 4, 2, 32, 1))),
]


@pytest.mark.parametrize(("operator", "tactic"), FORMS, ids=str)
def test_a_form_of_large_layers_is_right_on_a_small_one(
    operator: str, tactic: tuple[int, ...], emulator: Emulator
) -> None:
    n, k, chosen = 130, 712, Tactic(*tactic)
    layer = layer_of(n, k, operator == "dense_w8a16_silu_mul")
    checked(Case(operator, {"rows": 8 * chosen.mt - 1, "n": n, "k": k}), partial(given, layer, chosen), emulator)


@pytest.mark.parametrize("gated", [False, True])
def test_a_row_has_the_same_bits_in_every_tile_of_rows(gated: bool, emulator: Emulator) -> None:
    n, k = 72, 1000
    operator = "dense_w8a16_silu_mul" if gated else "dense_w8a16"
    x, *rest = subjects()[operator].inputs(Case(operator, {"rows": 64, "n": n, "k": k}), CPU)
    layer = layer_of(n, k, gated)
    wanted = given(layer, candidates(layer, 64)[0], x, *rest)
    for rows in (1, 8, 16, 24, 32, 48):
        for tactic in candidates(layer, rows):
            emulator.seed += 1
            # Any rows of the batch, in another place of the tile.
            chosen = torch.arange(63, 63 - rows, -1)
            assert torch.equal(given(layer, tactic, x[chosen], *rest), wanted[chosen]), tactic


def test_counters_are_zero_again(emulator: Emulator) -> None:
    n, k = 40, 1104
    x, weight, scale, counters, *rest = subjects()["dense_w8a16"].inputs(
        Case("dense_w8a16", {"rows": 70, "n": n, "k": k}), CPU
    )
    layer = layer_of(n, k, False)
    tactic = candidates(layer, 70)[0]
    assert tactic.split > 1
    for _ in range(2):
        given(layer, tactic, x, weight, scale, counters, *rest)
        assert not counters.any()


@pytest.mark.parametrize("rows", [1, 13, 70])
@pytest.mark.parametrize("operator", ["dense_w8a16", "dense_w8a16_silu_mul"])
def test_nothing_but_its_rows_is_read(operator: str, rows: int) -> None:
    x, *rest = subjects()[operator].inputs(Case(operator, {"rows": rows, "n": 40, "k": 200}), CPU)
    wanted = dense._dense(operator, x, *rest)
    around = torch.full((rows + 16, x.shape[1] + 64), float("nan"), dtype=x.dtype)
    inside = around[8 : 8 + rows, 16 : 16 + x.shape[1]]
    inside.copy_(x)
    assert torch.equal(dense._dense(operator, inside, *rest), wanted)
