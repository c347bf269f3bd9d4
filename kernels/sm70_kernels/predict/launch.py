"""How a launch is described to the predicting model: its grid, its parameters, and which buffers come from DRAM.

In a decode step weights pass through L2 once and are gone before the next step, so they are cold; activations were
written by the kernel before and are in L2, unless there are more of them than it holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sm70_kernels.hardware import L2_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

Extent: TypeAlias = "int | tuple[int, int, int]"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer parameter: the bytes of it that the launch touches, and whether they lie in DRAM (`cold`) or in L2.

    `words` is what the kernel reads there where its way hangs on it: 32-bit integers, over and over.
    """

    bytes: int
    cold: bool = False
    words: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as the model needs it.

    `args` has a Buffer for each pointer and a number for each other letter of the kernel's `params`. `sample` lists the
    blocks to emulate; the grid is taken to be made of them in turn. Where blocks count themselves by an atomic and the
    last of each `group` does more, `closing` is what its atomic answers, and the others are answered 0. `products`
    counts the multiplications that the result needs of the tensor cores, for the roofline.
    """

    grid: Extent
    args: Sequence[Buffer | int | float]
    shape: str = ""
    sample: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)
    closing: int | None = None
    group: int = 1
    products: int = 0

    @property
    def extent(self) -> tuple[int, int, int]:
        """The grid as three numbers."""
        return (self.grid, 1, 1) if isinstance(self.grid, int) else self.grid

    @property
    def blocks(self) -> int:
        """How many blocks the grid has."""
        return math.prod(self.extent)


def activations(size: int) -> Buffer:
    """Return the buffer of `size` bytes of activations: in L2 where they fit."""
    return Buffer(size, cold=size > L2_BYTES)
