"""The control word of a Volta instruction: what the assembler tells the issue logic, in bits 105 to 125 of its 128.

Layout from Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018): from the top, four
reuse flags, six wait bits, read barrier, write barrier, yield, four bits of stall count.
"""

from __future__ import annotations

from dataclasses import dataclass

NONE = 7
"""The barrier number that means no barrier."""

_SHIFT = 105 - 64


@dataclass(frozen=True, slots=True)
class Control:
    """`stall` cycles before the warp's next issue; `yields` when another warp should go first.

    `write` and `read` are the scoreboard barrier (0 to 5, None for none) released when the result is there, and when
    the sources have been read; `wait` lists the barriers that must be free before this instruction issues; `reuse` has
    a bit for each source operand that stays in its reuse cache.
    """

    stall: int
    yields: bool
    write: int | None
    read: int | None
    wait: tuple[int, ...]
    reuse: int


def decode(upper: int) -> Control:
    """Decode the control word from the upper 64 bits of an instruction."""
    bits = upper >> _SHIFT
    write, read, wait = bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63
    return Control(
        stall=bits & 15,
        # The bit is inverted: set, it lets the warp go on.
        yields=not bits >> 4 & 1,
        write=None if write == NONE else write,
        read=None if read == NONE else read,
        wait=tuple(number for number in range(6) if wait >> number & 1),
        reuse=bits >> 17 & 15,
    )
