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

    `contents` are the known first bytes of a buffer, by the number of its parameter.
    """

    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    threads: tuple[int, int, int]
    banks: Mapping[int, bytes]
    atomic: int | None = None
    contents: Mapping[int, bytes] = field(default_factory=dict)
