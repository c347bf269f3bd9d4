"""What one instruction does to the registers and predicates of a warp. Data stays unknown (None)."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sm70_kernels.predict.emulate import arithmetic as do
from sm70_kernels.predict.emulate.arithmetic import TRUE, ZERO
from sm70_kernels.predict.machine.pipes import operation
from sm70_kernels.predict.machine.sass import Operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm70_kernels.predict.emulate.arithmetic import Bits, Longs, Predicate, Value, Words
    from sm70_kernels.predict.emulate.registers import Registers
    from sm70_kernels.predict.machine.sass import Instruction

Rule: TypeAlias = "Callable[[Registers, Bits | None], None]"


def rule(instruction: Instruction) -> Rule:
    """Return what an instruction that neither branches nor touches memory does, for the lanes that execute it."""
    if known := _RULES.get(instruction.base):
        return partial(known, instruction)
    kind = operation(instruction)
    words: list[int] = []
    predicates: list[Operand] = []
    for operand in instruction.operands if kind.results else ():
        if operand.kind == "predicate":
            predicates.append(operand)
            continue
        if operand.kind == "register" and operand.index is not None and "SETP" not in instruction.base:
            words = list(range(operand.index, operand.index + (2 if kind.pipe in ("tensor", "double") else 1)))
        break
    return partial(_forget, words, predicates)


def _forget(words: list[int], predicates: list[Operand], registers: Registers, lanes: Bits | None) -> None:
    for word in words:
        registers.set_word(word, None, lanes)
    for operand in predicates:
        registers.set_predicate(operand, None, lanes)


def _split(instruction: Instruction) -> tuple[list[Operand], Operand, list[Operand]]:
    """Return the predicates written before the first register, that register, and the operands read."""
    operands = instruction.operands
    first = next(index for index, each in enumerate(operands) if each.kind != "predicate")
    rest = first + 1
    # Carries out stand between the register written and the first one read.
    outs = list(operands[:first])
    while rest < len(operands) and operands[rest].kind == "predicate" and instruction.base in ("IADD3", "LEA"):
        outs.append(operands[rest])
        rest += 1
    return outs, operands[first], list(operands[rest:])


def _two(values: list[Value]) -> tuple[Words, Words] | None:
    a, b = values
    return None if a is None or b is None else (a, b)


def _three(values: list[Value]) -> tuple[Words, Words, Words] | None:
    a, b, c = values
    return None if a is None or b is None or c is None else (a, b, c)


def _relevant(values: list[Value], table: int) -> list[Value]:
    """Replace unknown operands of a bitwise function that it does not look at."""

    def ignored(shift: int) -> bool:
        return all((table >> row & 1) == (table >> (row ^ shift) & 1) for row in range(8))

    return [ZERO if value is None and ignored(4 >> place) else value for place, value in enumerate(values)]


def _bitwise(values: list[Value], table: int) -> Value:
    """Return a bitwise function where no bit of it hangs on the unknown operands, as with an AND with zero."""
    choices = [(ZERO, ~ZERO) if value is None else (value,) for value in values]
    first, *others = (do.lop3(a, b, c, table) for a, b, c in product(*choices))
    return first if all(np.array_equal(first, other) for other in others) else None


def _mov(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    target, source = instruction.operands[:2]
    registers.set_word(target.index, registers.read(source), lanes)


def _s2r(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    target, source = instruction.operands[:2]
    value = registers.special(source.text)
    registers.set_word(target.index, value, lanes)
    if instruction.base == "CS2R" and "32" not in instruction.modifiers and target.index is not None:
        registers.set_word(target.index + 1, ZERO if source.text == "SRZ" else None, lanes)


def _imad(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    _, target, sources = _split(instruction)
    if "WIDE" in instruction.modifiers:
        registers.write_words(instruction, _imad_wide(instruction, registers, sources), lanes)
        return
    known = _three([registers.read(each) for each in sources[:3]])
    value = None if known is None else do.multiply_add(*known, instruction.modifiers)
    if value is not None and "X" in instruction.modifiers:
        carry = registers.predicate(sources[3])
        value = None if carry is None else value + carry.astype(np.uint32)
    registers.set_word(target.index, value, lanes)


def _imad_wide(instruction: Instruction, registers: Registers, sources: list[Operand]) -> list[Value]:
    c = sources[2]
    high: Value = ZERO
    if c.kind == "register" and c.index is not None:
        high = registers.word(c.index + 1)
    elif c.kind == "constant":
        high = registers.raw(_next(c))
    known = _three([registers.read(each) for each in sources[:3]])
    if known is None or high is None:
        return [None, None]
    return list(do.multiply_wide(*known, high, instruction.modifiers))


def _next(constant: Operand) -> Operand:
    """Return the word after a constant."""
    return type(constant)("constant", constant.index, int(constant.value) + 4)


def _iadd3(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    outs, target, sources = _split(instruction)
    total: Longs | None = np.zeros(32, np.uint64)
    for operand in sources if "X" in instruction.modifiers else sources[:3]:
        term = _term(operand, registers)
        total = None if term is None or total is None else total + term
    _write_sum(total, outs, target, registers, lanes)


def _term(operand: Operand, registers: Registers) -> Longs | None:
    if operand.kind == "predicate":
        bits = registers.predicate(operand)
        return None if bits is None else bits.astype(np.uint64)
    value = registers.raw(operand)
    if value is None:
        return None
    long = (~value if operand.inverted else value).astype(np.uint64)
    # A negated term is its complement plus one, whose carry counts: 0 - 0 carries.
    return np.uint64(1 << 32) - long if operand.negative else long


def _write_sum(
    total: Longs | None, outs: list[Operand], target: Operand, registers: Registers, lanes: Bits | None
) -> None:
    """Write a sum, and its carry as one and as two."""
    registers.set_word(target.index, None if total is None else total.astype(np.uint32), lanes)
    for number, out in enumerate(outs, start=1):
        registers.set_predicate(out, None if total is None else total >> np.uint64(32) >= number, lanes)


def _lea(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    outs, target, sources = _split(instruction)
    modifiers = instruction.modifiers
    high_part, extended = "HI" in modifiers, "SX32" in modifiers
    position = 3 if high_part and not extended else 2
    a, b = registers.read(sources[0]), registers.read(sources[1])
    carry = registers.predicate(sources[position + 1]) if "X" in modifiers else ~TRUE
    top: Value = ZERO
    if high_part:
        top = registers.read(sources[2])
    if extended:
        top = None if a is None else (a.view(np.int32) >> 31).view(np.uint32)
    total = None
    if a is not None and b is not None and top is not None and carry is not None:
        low, high = do.halves(do.wide(a, top) << np.uint64(int(sources[position].value)))
        total = (high if high_part else low).astype(np.uint64) + b.astype(np.uint64) + carry.astype(np.uint64)
    _write_sum(total, outs, target, registers, lanes)


def _lop3(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    outs, target, sources = _split(instruction)
    value = _bitwise([registers.read(each) for each in sources[:3]], int(sources[3].value))
    registers.set_word(target.index, value, lanes)
    for out in outs:
        registers.set_predicate(out, None if value is None else value != 0, lanes)


def _shf(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    _, target, sources = _split(instruction)
    known = _three([registers.read(each) for each in sources[:3]])
    value = None if known is None else do.funnel_shift(*known, instruction.modifiers)
    registers.set_word(target.index, value, lanes)


def _prmt(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    _, target, sources = _split(instruction)
    known = _three([registers.read(each) for each in sources[:3]])
    registers.set_word(target.index, None if known is None else do.permute(*known), lanes)


def _sel(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    _, target, sources = _split(instruction)
    known = _two([registers.read(each) for each in sources[:2]])
    chosen = registers.predicate(sources[2])
    value = None if known is None or chosen is None else np.where(chosen, known[0], known[1])
    registers.set_word(target.index, value, lanes)


def _imnmx(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    _, target, sources = _split(instruction)
    known = _two([registers.read(each) for each in sources[:2]])
    smaller = registers.predicate(sources[2])
    if known is None or smaller is None:
        registers.set_word(target.index, None, lanes)
        return
    a, b = known
    less = do.compare(a, b, ("LT", *instruction.modifiers))
    registers.set_word(target.index, np.where(less == smaller, a, b), lanes)


def _iabs(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    value = registers.read(instruction.operands[1])
    found = None if value is None else np.abs(value.view(np.int32).astype(np.int64)).astype(np.uint32)
    registers.set_word(instruction.operands[0].index, found, lanes)


def _popc(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    value = registers.read(instruction.operands[1])
    registers.set_word(
        instruction.operands[0].index, None if value is None else np.bitwise_count(value).astype(np.uint32), lanes
    )


def _isetp(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    out, opposite, left, right, *rest = instruction.operands
    known = _two([registers.read(left), registers.read(right)])
    held: Predicate = None
    if known is not None:
        held = do.compare(*known, instruction.modifiers)
        if "EX" in instruction.modifiers:
            lower = registers.predicate(rest[1])
            held = None if lower is None else np.where(known[0] == known[1], lower, held)
    other = registers.predicate(rest[0])
    negated = None if held is None else ~held
    registers.set_predicate(out, do.combine(held, other, instruction.modifiers), lanes)
    registers.set_predicate(opposite, do.combine(negated, other, instruction.modifiers), lanes)


def _plop3(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    out, opposite, a, b, c, *tables = instruction.operands
    bits = [registers.predicate(each) for each in (a, b, c)]
    words: list[Value] = [None if each is None else each.astype(np.uint32) for each in bits]
    for target, table in zip((out, opposite), tables, strict=False):
        known = _three(_relevant(words, int(table.value)))
        found = None if known is None else (do.lop3(*known, int(table.value)) & np.uint32(1)).astype(np.bool_)
        registers.set_predicate(target, found, lanes)


def _division(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    target, source = instruction.operands[:2]
    value = registers.read(source)
    integers = instruction.base != "MUFU" or "RCP" in instruction.modifiers
    found = None
    if value is not None and integers and "F64" not in instruction.modifiers:
        found = do.rounded_division(instruction, value)
    registers.set_word(target.index, found, lanes)


def _shfl(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    _, target, source, where, *_ = instruction.operands
    value, lane = registers.read(source), registers.read(where)
    found = None
    if value is not None and lane is not None and "IDX" in instruction.modifiers:
        found = value[lane & np.uint32(31)]
    elif value is not None and (value == value[0]).all():
        found = value
    registers.set_word(target.index, found, lanes)


def _r2p(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    _, source, mask = instruction.operands
    value = registers.read(source)
    for number in range(7):
        if int(mask.value) >> number & 1:
            place = number + 8 * _byte(source)
            bits = None if value is None else (value >> np.uint32(place) & np.uint32(1)).astype(np.bool_)
            registers.set_predicate(Operand("predicate", number), bits, lanes)


def _p2r(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    target, _, source, mask = instruction.operands
    result = registers.read(source)
    if result is not None:
        result = result & ~np.uint32(int(mask.value) << 8 * _byte(target))
    for number in range(7):
        if int(mask.value) >> number & 1:
            bits = registers.predicate(Operand("predicate", number))
            place = np.uint32(number + 8 * _byte(target))
            result = None if bits is None or result is None else result | bits.astype(np.uint32) << place
    registers.set_word(target.index, result, lanes)


def _byte(operand: Operand) -> int:
    """Return the byte of a register that `.B1` and the like name."""
    return next((number for number in (1, 2, 3) if operand.text.endswith(f".B{number}")), 0)


def _vote(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    *written, source = instruction.operands
    bits = registers.predicate(source)
    held = None if bits is None or lanes is None else bits & lanes
    for operand in written:
        if operand.kind == "register":
            ballot = None if held is None else registers.uniform(int(np.dot(held, 1 << np.arange(32, dtype=np.int64))))
            registers.set_word(operand.index, ballot, lanes)
            continue
        answer: Predicate = None
        if held is not None and lanes is not None:
            agreed = held.any() if "ANY" in instruction.modifiers else (held == lanes).all()
            answer = TRUE if agreed else ~TRUE
        registers.set_predicate(operand, answer, lanes)


def _fchk(instruction: Instruction, registers: Registers, lanes: Bits | None) -> None:
    # Whether a division needs its slow path; ordinary numbers do not.
    registers.set_predicate(instruction.operands[0], ~TRUE, lanes)


_RULES: dict[str, Callable[[Instruction, Registers, Bits | None], None]] = {
    "MOV": _mov,
    "MOV32I": _mov,
    "S2R": _s2r,
    "CS2R": _s2r,
    "IMAD": _imad,
    "IADD3": _iadd3,
    "LEA": _lea,
    "LOP3": _lop3,
    "SHF": _shf,
    "PRMT": _prmt,
    "SEL": _sel,
    "IMNMX": _imnmx,
    "IABS": _iabs,
    "POPC": _popc,
    "ISETP": _isetp,
    "PLOP3": _plop3,
    "I2F": _division,
    "F2I": _division,
    "MUFU": _division,
    "SHFL": _shfl,
    "R2P": _r2p,
    "P2R": _p2r,
    "VOTE": _vote,
    "FCHK": _fchk,
}
