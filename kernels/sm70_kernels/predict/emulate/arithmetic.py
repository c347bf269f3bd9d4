"""The integer arithmetic of SM70 code over a warp's 32 lanes: enough to know every branch, trip count and address.

A value is an array of 32 unsigned words, or None where it is not known (loaded data, floating point). What an
instruction makes of unknown values is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from sm70_kernels.predict.machine.sass import Instruction

Words: TypeAlias = "npt.NDArray[np.uint32]"
Longs: TypeAlias = "npt.NDArray[np.uint64]"
Bits: TypeAlias = "npt.NDArray[np.bool_]"
Value: TypeAlias = "Words | None"
Predicate: TypeAlias = "Bits | None"

ZERO: Words = np.zeros(32, np.uint32)
TRUE: Bits = np.ones(32, np.bool_)
FALSE: Bits = np.zeros(32, np.bool_)


def signed(value: Words) -> npt.NDArray[np.int32]:
    """Return the same bits as signed words."""
    return value.view(np.int32)


def wide(low: Words, high: Words) -> Longs:
    """Return 64-bit values from their halves."""
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def halves(value: Longs) -> tuple[Words, Words]:
    """Return the low and high words of 64-bit values."""
    return value.astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)


def funnel_shift(low: Words, shift: Words, high: Words, modifiers: Sequence[str]) -> Words:
    """SHF: shift the pair (high, low) left (.L) or right (.R), and give one of its words (.HI the high one)."""
    bits = 64 if any(each in ("U64", "S64") for each in modifiers) else 32
    # Without .W a shift of the whole width or more shifts everything out; 63 does that for what the other word gave.
    amount = (shift & np.uint32(bits - 1)) if "W" in modifiers else np.minimum(shift, np.uint32(bits))
    count = np.minimum(amount, np.uint32(63)).astype(np.uint64)
    pair = wide(low, high)
    if "L" in modifiers:
        moved = np.where(amount >= 64, np.uint64(0), pair << count)
    elif any(each in ("S32", "S64") for each in modifiers):
        moved = (pair.view(np.int64) >> count.astype(np.int64)).view(np.uint64)
    else:
        moved = np.where(amount >= 64, np.uint64(0), pair >> count)
    return halves(moved)[1 if "HI" in modifiers else 0]


def lop3(a: Words, b: Words, c: Words, table: int) -> Words:
    """LOP3: the bitwise function whose value for the bits (a, b, c) is bit 4a + 2b + c of `table`."""
    result = np.zeros(32, np.uint32)
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result


def permute(a: Words, selector: Words, b: Words) -> Words:
    """PRMT: each selector nibble takes one of the eight bytes of (b, a), or (bit 3) its sign."""
    pair = wide(a, b)
    result = np.zeros(32, np.uint32)
    for byte in range(4):
        nibble = selector >> np.uint32(4 * byte) & np.uint32(15)
        found = (pair >> (nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)).astype(np.uint32) & np.uint32(255)
        found = np.where(nibble & np.uint32(8), np.where(found & np.uint32(128), 255, 0), found).astype(np.uint32)
        result |= found << np.uint32(8 * byte)
    return result


_COMPARISONS: dict[str, Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Bits]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def compare(a: Words, b: Words, modifiers: Sequence[str]) -> Bits:
    """ISETP: the comparison that the modifiers name, signed unless they say U32."""
    relation = _COMPARISONS[next(each for each in modifiers if each in _COMPARISONS)]
    if "U32" in modifiers:
        return relation(a.astype(np.int64), b.astype(np.int64))
    return relation(signed(a).astype(np.int64), signed(b).astype(np.int64))


def combine(a: Predicate, b: Predicate, modifiers: Sequence[str]) -> Predicate:
    """Join two predicates by AND, OR or XOR; one that decides alone is enough."""
    how = next((each for each in modifiers if each in ("AND", "OR", "XOR")), "AND")
    for one, other in ((a, b), (b, a)):
        if one is None and other is not None and how != "XOR":
            decided = ~other.any() if how == "AND" else other.all()
            return (FALSE if how == "AND" else TRUE) if decided else None
    if a is None or b is None:
        return None
    return {"AND": a & b, "OR": a | b, "XOR": a ^ b}[how]


def multiply_add(a: Words, b: Words, c: Words, modifiers: Sequence[str]) -> Words:
    """IMAD and its forms without .WIDE: a * b + c, or with .HI the upper half of a * b, plus c."""
    if "HI" not in modifiers:
        return a * b + c
    if "U32" in modifiers:
        product = a.astype(np.uint64) * b.astype(np.uint64)
    else:
        product = (signed(a).astype(np.int64) * signed(b).astype(np.int64)).view(np.uint64)
    return halves(product)[1] + c


def multiply_wide(a: Words, b: Words, low: Words, high: Words, modifiers: Sequence[str]) -> tuple[Words, Words]:
    """IMAD.WIDE: the 64-bit a * b + (high, low)."""
    if "U32" in modifiers:
        product = a.astype(np.uint64) * b.astype(np.uint64)
    else:
        product = (signed(a).astype(np.int64) * signed(b).astype(np.int64)).view(np.uint64)
    return halves(product + wide(low, high))


def rounded_division(instruction: Instruction, value: Words) -> Words:
    """The three float steps of an integer division: I2F of an integer, MUFU.RCP, F2I, bit patterns in and out."""
    if instruction.base == "I2F":
        exact = (value if "U32" in instruction.modifiers else signed(value)).astype(np.float64)
        found = exact.astype(np.float32)
        if "RP" in instruction.modifiers:
            found = np.where(found < exact, np.nextafter(found, np.float32(np.inf)), found)
        return found.astype(np.float32).view(np.uint32)
    real = value.view(np.float32)
    with np.errstate(all="ignore"):
        if instruction.base == "MUFU":
            return (np.float32(1) / real).astype(np.float32).view(np.uint32)
        clipped = np.clip(np.nan_to_num(real.astype(np.float64)), -(2.0**31), 2.0**32 - 1)
        if "U32" in instruction.modifiers:
            return np.clip(clipped, 0, None).astype(np.uint64).astype(np.uint32)
        return clipped.astype(np.int64).astype(np.uint32)
