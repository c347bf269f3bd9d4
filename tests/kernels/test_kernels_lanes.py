"""The lane maps: every element of every operand lives in exactly one place, and Python and the header agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm70_kernels import lanes
from sm70_kernels.build.compiler import compile_specialisation
from sm70_kernels.registry import Kernel, Specialisation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("element", "registers", "rows", "columns"),
    [
        (lanes.a_element, lanes.HALVES, 8, 4),
        (lanes.b_element, lanes.HALVES, 4, 8),
        (lanes.c_element, lanes.ACCUMULATORS, 8, 8),
    ],
    ids=["A", "B", "C"],
)
def test_each_element_has_one_place(
    element: Callable[[int, int], lanes.Element], registers: int, rows: int, columns: int
) -> None:
    places = [element(lane, register) for lane in range(lanes.LANES) for register in range(registers)]
    everything = {(q, r, c) for q in range(lanes.QUAD_PAIRS) for r in range(rows) for c in range(columns)}
    assert len(places) == len(set(places)) == len(everything)
    assert set(places) == everything


def test_a_quad_pair_is_two_groups_of_four_lanes() -> None:
    assert [lane for lane in range(32) if lanes.quad_pair(lane) == 1] == [4, 5, 6, 7, 20, 21, 22, 23]


@pytest.mark.needs("engine")
def test_the_header_has_the_same_maps(tmp_path: Path) -> None:
    claims = []
    for lane in range(lanes.LANES):
        claims.append(f"quad_pair({lane}) == {lanes.quad_pair(lane)}")
        claims.append(f"a_row({lane}) == {lanes.a_element(lane, 0).row}")
        claims.append(f"b_column({lane}) == {lanes.b_element(lane, 0).column}")
        for register in range(lanes.ACCUMULATORS):
            _, row, column = lanes.c_element(lane, register)
            claims.append(f"c_row({lane}, {register}) == {row} && c_column({lane}, {register}) == {column}")
    source = tmp_path / "maps.cu"
    source.write_text(
        '#include "mma/m8n8k4.cuh"\nusing namespace m8n8k4;\n'
        + "".join(f"static_assert({claim});\n" for claim in claims)
        + 'extern "C" __global__ void __launch_bounds__(THREADS) maps() {}\n'
    )
    kernel = Kernel("maps", source=str(source), entry="maps", params="", constants=("THREADS",))
    compile_specialisation(Specialisation(kernel, {"THREADS": 32}))
