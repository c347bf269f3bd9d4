"""Bank conflicts, sectors and lines of patterns that can be counted by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sm70_kernels import lanes
from sm70_kernels.predict.emulate.addresses import line_wavefronts, sectors, shared_wavefronts

if TYPE_CHECKING:
    import numpy.typing as npt

LANE = np.arange(32)
ALL = np.ones(32, np.bool_)


def shared(offsets: npt.NDArray[Any], size: int, active: npt.NDArray[Any] = ALL) -> int:
    return shared_wavefronts(np.asarray(offsets).astype(np.uint64), active, size)


@pytest.mark.parametrize(
    ("offsets", "size", "wavefronts"),
    [
        (LANE * 4, 4, 1),
        (LANE * 8, 4, 2),
        (LANE * 128, 4, 32),
        (LANE * 0, 4, 1),
        (LANE // 2 * 2, 2, 1),
        (LANE * 132, 4, 1),
        (LANE * 8, 8, 2),
        (LANE * 16, 16, 4),
        # Eight lanes 32 bytes apart cover 256 bytes: two wavefronts for each quarter of the warp.
        (LANE * 32, 16, 8),
        # One address for all: pairs are alike, so two quarters go at once.
        (LANE * 0, 16, 2),
        (LANE * 0, 8, 1),
        (LANE // 2 * 16, 16, 2),
        # Pairs (n, n xor 4) are alike, which does not help.
        (LANE % 4 * 16, 16, 4),
    ],
)
def test_shared_memory(offsets: npt.NDArray[Any], size: int, wavefronts: int) -> None:
    assert shared(offsets, size) == wavefronts
    assert shared(offsets + 4096 + 128, size) == wavefronts


def test_idle_lanes_cost_nothing() -> None:
    assert shared(LANE * 128, 4, LANE < 3) == 3
    assert shared(LANE * 16, 16, LANE < 8) == 1
    assert shared(LANE * 4, 4, LANE < 0) == 0


def test_padded_fragment_rows_have_no_conflicts() -> None:
    # A fragments of m8n8k4: a lane reads 16 bytes of its own row of 64 halves, 8 more being padding, as dense/ has it.
    rows = np.array([lanes.a_element(lane, 0).row for lane in range(32)])
    assert shared(rows * (64 + 8) * 2, 16) == 4
    assert shared(rows * 64 * 2, 16) == 16


def test_global_memory() -> None:
    def asked(offsets: npt.NDArray[Any], size: int, active: npt.NDArray[Any] = ALL) -> tuple[int, int]:
        where = np.asarray(offsets).astype(np.uint64) + np.uint64(1 << 36)
        return len(sectors(where, active)), line_wavefronts(where, active, size)

    assert asked(LANE * 4, 4) == (4, 1)
    assert asked(LANE * 16, 16) == (16, 4)
    assert asked(LANE * 128, 4) == (32, 32)
    assert asked(LANE * 0, 4) == (1, 1)
    assert asked(LANE * 4 + 64, 4) == (4, 2)
    assert asked(LANE * 4, 4, LANE < 8) == (1, 1)
