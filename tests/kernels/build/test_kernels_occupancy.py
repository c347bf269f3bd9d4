"""Occupancy on SM70, against figures of CUDA's occupancy calculator for compute capability 7.0."""

from __future__ import annotations

import pytest

from sm70_kernels.build.occupancy import occupancy


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limited_by"),
    [
        (256, 32, 0, 8, "warps"),
        (32, 16, 0, 32, "blocks"),
        (256, 33, 0, 6, "registers"),  # 40 registers allocated: 1280 a warp, 12 warps a sub-core
        (128, 255, 0, 2, "registers"),  # 8192 a warp, 2 warps a sub-core
        (1024, 64, 0, 1, "registers"),
        (1024, 65, 0, 0, "registers"),
        (256, 32, 49152, 2, "shared memory"),
        (256, 32, 49153, 1, "shared memory"),
        (64, 32, 98305, 0, "shared memory"),
        (96, 32, 0, 21, "warps"),
    ],
)
def test_blocks_of_an_sm(threads: int, registers: int, shared: int, blocks: int, limited_by: str) -> None:
    found = occupancy(threads, registers, shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * -(-threads // 32)
    assert found.share == found.warps / 64
