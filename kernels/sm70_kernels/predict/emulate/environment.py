"""What a block of the emulator sees from outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

REGION_SHIFT = 36
"""Pointers are numbered: the buffer of parameter number i starts at (i + 1) << REGION_SHIFT."""

PARAMETERS = 0x160
"""Where a kernel's parameters start in constant bank 0 on SM70."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a block sees: its place in the grid, the constant banks (0 has the parameters), and what atomics answer.

    `words` are the contents of buffers that are known, by number: 32-bit integers, over and over.
    """

    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    banks: Mapping[int, bytes]
    atomic: int | None = None
    words: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
