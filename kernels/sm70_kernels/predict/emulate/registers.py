"""The registers and predicates of one warp, and what an instruction's operands read and write of them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from sm70_kernels.predict.emulate.arithmetic import TRUE, ZERO, wide

if TYPE_CHECKING:
    import numpy.typing as npt

    from sm70_kernels.predict.emulate.arithmetic import Bits, Longs, Predicate, Value, Words
    from sm70_kernels.predict.emulate.environment import Environment
    from sm70_kernels.predict.machine.sass import Instruction, Operand


class Group:
    """Lanes that run together: the index of their next instruction, and which they are."""

    __slots__ = ("active", "index")

    def __init__(self, index: int, active: Bits) -> None:
        self.index = index
        self.active = active


class Registers:
    """Registers and predicates of one warp, and the constants it reads."""

    def __init__(self, threads: npt.NDArray[np.int64], environment: Environment) -> None:
        self._words: list[Value] = [None] * 256
        self._bits: list[Predicate] = [None] * 8
        self._environment = environment
        self._immediates: dict[int, Words] = {}
        x, y, _ = environment.threads
        special = {
            "SR_TID.X": threads % x,
            "SR_TID.Y": threads // x % y,
            "SR_TID.Z": threads // (x * y),
            "SR_LANEID": threads % 32,
            "SRZ": threads * 0,
        }
        for axis, place in zip("XYZ", environment.block, strict=True):
            special[f"SR_CTAID.{axis}"] = threads * 0 + place
        self._special = {name: value.astype(np.uint32) for name, value in special.items()}

    def special(self, name: str) -> Value:
        """Return a special register, None for those that the model does not have (clocks)."""
        return self._special.get(name)

    def word(self, index: int | None) -> Value:
        """Return a register; None for the index is RZ."""
        return ZERO if index is None else self._words[index]

    def _constant(self, bank: int | None, offset: int) -> Value:
        data = self._environment.banks.get(bank or 0, b"")
        if offset + 4 > len(data):
            return None
        return self.uniform(struct.unpack_from("<I", data, offset)[0])

    def uniform(self, number: int) -> Words:
        """Return one number in all lanes."""
        number &= 0xFFFFFFFF
        found = self._immediates.get(number)
        if found is None:
            found = self._immediates[number] = np.full(32, number, np.uint32)
        return found

    def raw(self, operand: Operand) -> Value:
        """Return what an operand names, before its sign."""
        if operand.kind == "register":
            return self.word(operand.index)
        if operand.kind == "immediate":
            if isinstance(operand.value, float):
                return None
            return self.uniform(operand.value)
        if operand.kind == "constant":
            return self._constant(operand.index, int(operand.value))
        return None

    def read(self, operand: Operand) -> Value:
        """Return an integer operand with its modifiers applied."""
        value = self.raw(operand)
        if value is None:
            return None
        if operand.absolute:
            value = np.abs(value.view(np.int32).astype(np.int64)).astype(np.uint32)
        if operand.inverted:
            value = ~value
        if operand.negative:
            value = (~value + np.uint32(1)).astype(np.uint32)
        return value

    def predicate(self, operand: Operand) -> Predicate:
        """Return a predicate operand."""
        bits = TRUE if operand.index is None else self._bits[operand.index]
        if bits is None:
            return None
        return ~bits if operand.inverted else bits

    def active(self, instruction: Instruction, lanes: Bits) -> Bits | None:
        """Return the lanes that execute an instruction, None when its guard is not known."""
        if instruction.guard is None:
            return lanes
        bits = self.predicate(instruction.guard)
        return None if bits is None else lanes & bits

    def second_guard(self, instruction: Instruction, lanes: Bits) -> Bits | None:
        """Apply the predicate that a branch may have besides its guard."""
        for operand in instruction.operands:
            if operand.kind == "predicate":
                bits = self.predicate(operand)
                if bits is None:
                    return None
                lanes = lanes & bits
        return lanes

    def set_word(self, index: int | None, value: Value, lanes: Bits | None) -> None:
        """Write a register in some lanes; where lanes or value are not known, neither is the register."""
        if index is None:
            return
        old = self._words[index]
        if value is None or lanes is None:
            self._words[index] = None
        elif old is None or lanes.all():
            self._words[index] = value
        else:
            self._words[index] = np.where(lanes, value, old)

    def set_predicate(self, operand: Operand, value: Predicate, lanes: Bits | None) -> None:
        """Write a predicate in some lanes."""
        if operand.index is None:
            return
        old = self._bits[operand.index]
        if value is None or lanes is None:
            self._bits[operand.index] = None
        elif old is None or lanes.all():
            self._bits[operand.index] = value
        else:
            self._bits[operand.index] = np.where(lanes, value, old)

    def address(self, instruction: Instruction, long: bool) -> Longs | None:
        """Return the byte address that each lane of a memory instruction names, None when it is not known."""
        operand = next((each for each in instruction.operands if each.kind == "address"), None)
        if operand is None:
            return None
        low = self.word(operand.index)
        if low is None:
            return None
        if not long:
            return (low * np.uint32(operand.scale) + np.uint32(int(operand.value) & 0xFFFFFFFF)).astype(np.uint64)
        high = ZERO if operand.index is None else self.word(operand.index + 1)
        if high is None:
            return None
        return wide(low, high) + np.uint64(int(operand.value) & 0xFFFFFFFFFFFFFFFF)

    def stored(self, instruction: Instruction, words: int) -> list[Value]:
        """Return the words that a store writes."""
        source = instruction.operands[-1]
        if source.kind != "register":
            return [None] * words
        return [self.word(None if source.index is None else source.index + word) for word in range(words)]

    def write_words(self, instruction: Instruction, values: list[Value], lanes: Bits | None) -> None:
        """Write consecutive registers from an instruction's first register operand on."""
        target = next(each for each in instruction.operands if each.kind == "register")
        for word, value in enumerate(values):
            self.set_word(None if target.index is None else target.index + word, value, lanes)

    def write_all(self, instruction: Instruction, value: Value, lanes: Bits | None) -> None:
        """Write the registers that a load fills, and leave its predicate unknown."""
        widths = {"128": 4, "64": 2}
        words = next((widths[each] for each in instruction.modifiers if each in widths), 1)
        for operand in instruction.operands[:2]:
            if operand.kind == "predicate":
                self.set_predicate(operand, None, lanes)
        if instruction.operands[0].kind != "address":
            self.write_words(instruction, [value] * words, lanes)
