"""The tables of the dense kernels: each shape is served, what may serve gives the same bits, the suite reaches all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm70_kernels import qwen38
from sm70_kernels.cases import cases as cases_of
from sm70_kernels.dense import choice
from sm70_kernels.dense import table as dense
from sm70_kernels.dense.cases import FORMS, dense_layers
from sm70_kernels.dense.table import COUNTERS, INVARIANT_ROWS, Layer, candidates, layer_of, plan
from sm70_kernels.hardware import SHARED_PER_SM, SMS
from sm70_kernels.predict.machine.cubin import code_of

if TYPE_CHECKING:
    from sm70_kernels.registry import Specialisation

LAYERS = [layer_of(*layer) for ranks in qwen38.RANKS for layer in dense_layers(ranks).values()]
any_layer = st.builds(
    lambda tiles, blocks, gated: Layer(tiles * (1 + gated), blocks, gated),
    st.integers(1, 2000),
    st.integers(1, 200),
    st.booleans(),
)


@given(layer=any_layer)
def test_up_to_64_rows_k_is_cut_in_one_way(layer: Layer) -> None:
    every = [tactic for rows in range(1, INVARIANT_ROWS + 1) for tactic in candidates(layer, rows)]
    assert len({tactic.wk * tactic.split for tactic in every}) == 1
    assert all(layer.gated <= (tactic.nt % 2 == 0) for tactic in every)


@given(layer=any_layer, rows=st.integers(1, 5000))
def test_a_plan_covers_all_rows_and_tiles(layer: Layer, rows: int) -> None:
    for tactic in candidates(layer, rows):
        found = plan(layer, rows, tactic)
        x, y, z = found.grid
        assert (x - 1) * 8 * tactic.mt < rows <= x * 8 * tactic.mt
        assert (y - 1) * tactic.nt * tactic.wn < layer.tiles <= y * tactic.nt * tactic.wn
        assert z == tactic.split
        if z > 1:
            assert x * y <= COUNTERS
            # What csrc/dense/w8a16.cu says it wants, in floats.
            assert found.partials == x * y * z * tactic.wn * tactic.nt * tactic.mt * 256
        else:
            assert found.partials == 0
        assert found.spec.shared_bytes == found.spec.constants["SHARED"] <= SHARED_PER_SM // tactic.resident


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_real_layer_has_one_thread_block_for_most_of_the_sms(layer: Layer) -> None:
    for rows in (1, 16, 24, 32, 48):
        x, y, z = plan(layer, rows).grid
        assert 0.7 * SMS <= x * y * z <= SMS


def test_rows_of_padding_are_few() -> None:
    assert [dense.bucket_of(rows) for rows in (1, 8, 9, 24, 25, 33, 48, 49, 64)] == [8, 8, 16, 24, 32, 48, 48, 64, 64]
    assert [dense.bucket_of(rows) for rows in (65, 96, 97, 128, 129, 144, 145, 192, 193)] == [
        *(48, 48, 64, 64, 48, 48, 64, 64, 48)
    ]


def test_the_suite_launches_every_kernel_that_is_built() -> None:
    # tests/gpu/test_gpu_dense.py launches every candidate of these.
    forms = [layer_of(*layer) for layer in FORMS.values()]
    tried = [(layer, rows, tactic) for layer in forms for rows in (8, 16, 24, 32) for tactic in candidates(layer, rows)]
    launched = {plan(layer, rows, tactic).spec.name for layer, rows, tactic in tried}
    for operator in ("dense_w8a16", "dense_w8a16_silu_mul"):
        for case in cases_of(operator, "suite"):
            rows, n, k = (case.sizes[name] for name in ("rows", "n", "k"))
            gated = operator.endswith("silu_mul")
            layer = layer_of(n, k, gated)
            if rows:
                serves = dense.expansion(gated) if choice.expands(layer, rows) else plan(layer, rows).spec
                launched.add(serves.name)
    assert {spec.name for spec in dense.SPECIALISATIONS} == launched


SERVING = [
    plan(layer_of(*dense_layers(4)[name]), rows).spec
    for name in ("gate_up", "down")
    for rows in (8, 16, 24, 32, 48, 64)
]


@pytest.mark.needs("engine")
@pytest.mark.parametrize("spec", SERVING, ids=lambda spec: spec.name)
def test_the_machine_code_is_what_was_meant(spec: Specialisation) -> None:
    program = code_of(spec).program
    jumps = [each for each in program.instructions if each.base == "BRA" and each.target is not None]
    back = [each for each in jumps if each.target is not None and each.target < each.address]
    bodies = [[i for i in program.instructions if jump.target <= i.address <= jump.address] for jump in back]  # type: ignore[operator]
    body = min((each for each in bodies if any(i.base == "HMMA" for i in each)), key=len)

    def count(base: str, *modifiers: str) -> int:
        return sum(i.base == base and all(each in i.modifiers for each in modifiers) for i in body)

    constants = spec.constants
    steps = max(2 * constants["DEPTH"], constants["CHUNK"] // 8)
    tiles = steps * constants["NT"]
    assert count("LDG", "128", "NA") == tiles
    assert count("HMMA") == tiles * 4 * 4 * constants["MT"]
    assert count("LDS", "128") == count("LDS") == 2 * steps * constants["MT"]
    assert count("PRMT") == count("LDL") == count("STL") == 0
    # Four words of four bytes a lane, at most eight integer instructions each.
    integers = sum(count(base) for base in ("LOP3", "SHF", "SHL", "SHR")) + count("IMAD", "SHL")
    assert 4 * 7 * tiles <= integers <= 4 * 8 * tiles + 40
