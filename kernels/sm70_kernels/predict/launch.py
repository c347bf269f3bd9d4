"""How a launch is described to the predicting model: its grid, its parameters, and which buffers come from DRAM.

In a decode step weights pass through L2 once and are gone before the next step, so they are cold; activations were
written by the kernel before and are in L2, unless there are more of them than it holds.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sm70_kernels.hardware import L2_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Extent: TypeAlias = "int | tuple[int, int, int]"
Contents: TypeAlias = bytes


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pointer parameter: the bytes of it that the launch touches, and whether they lie in DRAM (`cold`) or in L2.

    `contents` are its first bytes where control flow or addresses hang on them (`integers`); all else is unknown data.
    """

    bytes: int
    cold: bool = False
    contents: Contents = b""


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


_FORMATS = {1: "b", 2: "h", 4: "i", 8: "q"}


def integers(values: Iterable[int], width: int = 4, *, cold: bool = False) -> Buffer:
    """Return the buffer of signed integers of `width` bytes (1, 2, 4 or 8) that the emulated blocks load as they are.

    For what decides trips and addresses: lengths of sequences, query starts, block tables, slots, state indices. Raises
    ValueError for a number that does not fit.
    """
    numbers = list(values)
    try:
        contents = struct.pack(f"<{len(numbers)}{_FORMATS[width]}", *numbers)
    except struct.error as error:
        raise ValueError(f"integers of {width} bytes cannot hold {max(numbers, key=abs)}") from error
    return Buffer(len(contents), cold, contents)


def activations(size: int) -> Buffer:
    """Return the buffer of `size` bytes of activations: in L2 where they fit."""
    return Buffer(size, cold=size > L2_BYTES)
