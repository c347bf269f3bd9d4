"""Where the elements of `mma.sync.m8n8k4` live: the mirror in Python of csrc/mma/m8n8k4.cuh, for packing and tests.

A warp makes four independent products, one for each quad-pair; the header has the picture.
"""

from __future__ import annotations

from typing import NamedTuple

LANES = 32
QUAD_PAIRS = 4
HALVES = 4
"""Halves of A, and of B, in one lane: k = 0 to 3."""
ACCUMULATORS = 8
"""Floats of C in one lane."""


class Element(NamedTuple):
    """One element of an operand: which of the warp's four products, and its row and column there."""

    quad_pair: int
    row: int
    column: int


def quad_pair(lane: int) -> int:
    """Return which of the four products a lane works for."""
    return lane >> 2 & 3


def a_element(lane: int, half: int) -> Element:
    """Return the element of A [8, 4] in a lane's half 0 to 3 (register half // 2)."""
    return Element(quad_pair(lane), (lane & 3) + ((lane & 16) >> 2), half)


def b_element(lane: int, half: int) -> Element:
    """Return the element of B [4, 8] in a lane's half 0 to 3 (register half // 2)."""
    return Element(quad_pair(lane), half, (lane & 3) + ((lane & 16) >> 2))


def c_element(lane: int, register: int) -> Element:
    """Return the element of C [8, 8] in a lane's register 0 to 7."""
    row = (lane & 1) + (register & 2) + ((lane & 16) >> 2)
    return Element(quad_pair(lane), row, (register & 4) + (lane & 2) + (register & 1))
