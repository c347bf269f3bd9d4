"""Walk the warps of a block through the code: which instructions each issues, and what its memory accesses touch.

Integers are followed exactly (parameters, indices, predicates, addresses, what shared memory passes on of them), so
trip counts, divergence, bank conflicts and sectors are those of the code as compiled. Loaded integers are known where
the launch declares them; other data is unknown. A branch that hangs on it is not taken, and counted. Warps run one
after another from barrier to barrier.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sm70_kernels.errors import KernelError
from sm70_kernels.predict.emulate import addresses
from sm70_kernels.predict.emulate.arithmetic import ZERO
from sm70_kernels.predict.emulate.contents import Contents
from sm70_kernels.predict.emulate.environment import REGION_SHIFT, Environment
from sm70_kernels.predict.emulate.interpret import rule
from sm70_kernels.predict.emulate.registers import Group, Registers
from sm70_kernels.predict.machine.pipes import access_bytes, operation

if TYPE_CHECKING:
    from sm70_kernels.predict.emulate.arithmetic import Bits, Longs, Value, Words
    from sm70_kernels.predict.machine.sass import Instruction, Program

_MOST_INSTRUCTIONS = 3_000_000


@dataclass(frozen=True, slots=True)
class Access:
    """What one memory instruction or barrier asks of the machine.

    `wavefronts` are cycles of the SM's memory pipe. Of global accesses, `missed` bytes go to L2 or DRAM in buffer
    `region`; the rest is in L1, where the access (warp, number) `filler` brought it. A barrier has its number in
    `region` and its warps (0: all) in `wavefronts`.
    """

    wavefronts: int
    missed: int = 0
    region: int = 0
    filler: tuple[int, int] | None = None


NOTHING = Access(0)


@dataclass(slots=True)
class Trace:
    """What one warp issues: indices into the program, and for memory instructions and barriers an access each."""

    steps: list[int] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Block:
    """The traces of one block's warps. `guessed` counts branches that hang on data; `read` and `written` are sector
    bytes by buffer that leave the SM."""

    warps: tuple[Trace, ...]
    guessed: int
    read: dict[int, int]
    written: dict[int, int]


class _Warp:
    """One warp between barriers: its registers, its groups of lanes that still run, and its trace."""

    def __init__(self, number: int, count: int, environment: Environment) -> None:
        lanes = np.arange(32 * number, 32 * number + 32)
        self.number = number
        self.registers = Registers(lanes, environment)
        active = lanes < count
        self.groups: list[Group] = [Group(0, active)]
        self.parked: dict[int, list[Group]] = {}
        self.joins: dict[int, Bits] = {}
        self.alive: Bits = active.copy()
        self.trace = Trace()
        self.calls: list[int] = []


def run_block(program: Program, environment: Environment, l1_bytes: int) -> Block:
    """Return what every warp of a block issues. Raises KernelError when the code cannot be followed."""
    return _Run(program, environment, l1_bytes).block()


class _Run:
    def __init__(self, program: Program, environment: Environment, l1_bytes: int) -> None:
        self.program = program
        self.code = program.instructions
        self.at = {instruction.address: index for index, instruction in enumerate(self.code)}
        self.environment = environment
        self.operations = [operation(instruction) for instruction in self.code]
        self.rules = [rule(instruction) for instruction in self.code]
        self.bytes = [access_bytes(instruction) for instruction in self.code]
        self.lines: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.capacity = l1_bytes // addresses.SECTOR
        self.shared: dict[int, int] = {}
        self.contents = Contents(environment.contents)
        self.read: dict[int, int] = {}
        self.written: dict[int, int] = {}
        self.guessed = 0
        self.issued = 0

    def block(self) -> Block:
        x, y, z = self.environment.threads
        count = x * y * z
        warps = [_Warp(number, count, self.environment) for number in range(-(-count // 32))]
        running = list(warps)
        waiting: dict[int, list[_Warp]] = {}
        while running or waiting:
            for warp in running:
                stop = self._advance(warp)
                if stop is not None:
                    waiting.setdefault(stop[0], []).append(warp)
            running = []
            live = sum(bool(warp.groups) for warp in warps)
            for number, held in list(waiting.items()):
                wanted = held[0].trace.accesses[-1].wavefronts or live
                if len(held) >= min(wanted, live):
                    running += waiting.pop(number)
            if waiting and not running:
                raise KernelError("model_failed", f"{self.program.name}: its warps wait for each other at {[*waiting]}")
        return Block(tuple(warp.trace for warp in warps), self.guessed, self.read, self.written)

    def _advance(self, warp: _Warp) -> tuple[int] | None:
        """Run a warp to its next barrier, whose number is returned, or to its end."""
        steps, accesses = warp.trace.steps, warp.trace.accesses
        registers, code, operations = warp.registers, self.code, self.operations
        while warp.groups:
            group = warp.groups[-1]
            index = group.index
            instruction = code[index]
            kind = operations[index]
            steps.append(index)
            self.issued += 1
            if self.issued > _MOST_INSTRUCTIONS:
                raise KernelError("model_failed", f"{self.program.name}: a block issues over {_MOST_INSTRUCTIONS}")
            group.index += 1
            if instruction.never:
                continue
            active = registers.active(instruction, group.active)
            if kind.space is not None:
                accesses.append(self._access(warp, instruction, index, active))
                continue
            if kind.flow is None:
                if active is None or active.any():
                    self.rules[index](registers, active)
                continue
            if instruction.base == "BAR":
                accesses.append(self._barrier(registers, instruction))
                return (accesses[-1].region,)
            self._flow(warp, group, instruction, active)
        return None

    def _flow(self, warp: _Warp, group: Group, instruction: Instruction, active: Bits | None) -> None:
        if instruction.base in ("BSSY", "BSYNC", "BREAK"):
            self._reconverge(warp, group, instruction, active)
            return
        if instruction.base == "BRA" and active is not None:
            active = warp.registers.second_guard(instruction, active)
            if "DIV" in instruction.modifiers and (group.active == warp.alive).all():
                return  # Taken by a warp whose lanes have parted.
        if active is None:
            self.guessed += 1
        elif not active.any():
            return
        elif instruction.base == "EXIT":
            self._leave(warp, group, active)
        else:
            self._jump(warp, group, instruction, active)

    def _reconverge(self, warp: _Warp, group: Group, instruction: Instruction, active: Bits | None) -> None:
        number = int(instruction.operands[0].text[1:])
        if instruction.base == "BSSY":
            warp.joins[number] = group.active.copy()
        elif instruction.base == "BSYNC":
            self._join(warp, group, number)
        elif active is not None:
            warp.joins[number] &= ~active

    def _jump(self, warp: _Warp, group: Group, instruction: Instruction, active: Bits) -> None:
        target = instruction.target
        if instruction.base == "RET":
            target = self.code[warp.calls.pop()].address if warp.calls else None
        elif instruction.base == "CALL":
            warp.calls.append(group.index)
        if target is None:
            raise KernelError("model_failed", f"{self.program.name}: cannot follow {instruction.text}")
        stays = group.active & ~active
        if stays.any():
            warp.groups.append(Group(self.at[target], active))
            group.active = stays
        else:
            group.index = self.at[target]

    def _leave(self, warp: _Warp, group: Group, leaving: Bits) -> None:
        warp.alive &= ~leaving
        group.active = group.active & ~leaving
        if not group.active.any():
            warp.groups.remove(group)
        for number in warp.joins:
            warp.joins[number] = warp.joins[number] & ~leaving
            self._merge(warp, number)

    def _join(self, warp: _Warp, group: Group, number: int) -> None:
        warp.parked.setdefault(number, []).append(group)
        warp.groups.remove(group)
        self._merge(warp, number)

    def _merge(self, warp: _Warp, number: int) -> None:
        held = warp.parked.get(number, [])
        if not held:
            return
        together = np.logical_or.reduce([group.active for group in held])
        if not (warp.joins[number] & ~together).any():
            warp.groups.append(Group(held[0].index, together))
            del warp.parked[number]

    def _barrier(self, registers: Registers, instruction: Instruction) -> Access:
        numbers = [registers.read(operand) for operand in instruction.operands if operand.kind != "predicate"]
        known = [0 if value is None else int(value[0]) for value in numbers]
        return Access(known[1] // 32 if len(known) > 1 else 0, region=known[0] if known else 0)

    def _access(self, warp: _Warp, instruction: Instruction, index: int, active: Bits | None) -> Access:
        """Return what a memory instruction asks for, and pass known values through shared memory."""
        kind, size = self.operations[index], self.bytes[index]
        # A guard that hangs on data is taken as met.
        lanes = warp.groups[-1].active if active is None else active
        if not lanes.any():
            return NOTHING
        registers = warp.registers
        if kind.space == "queue":
            self.rules[index](registers, lanes)
            return Access(1)
        where = registers.address(instruction, kind.space == "global")
        if kind.space == "shared":
            self._shared_values(registers, instruction, where, lanes, size)
        else:
            self._global_values(registers, instruction, where, lanes, size)
        if where is None:
            # Taken as one access to consecutive addresses.
            self.guessed += 1
            count = size * int(lanes.sum())
            return Access(max(1, count // 128), missed=0 if kind.space == "shared" else count)
        if kind.space == "shared":
            return Access(addresses.shared_wavefronts(where, lanes, size))
        return self._global(warp, instruction, where, lanes, size)

    def _global_values(
        self, registers: Registers, instruction: Instruction, where: Longs | None, lanes: Bits, size: int
    ) -> None:
        if instruction.base not in ("LDG", "LD"):
            self.contents.overwrite(where, lanes, size)
            if operation(instruction).loads:
                registers.write_all(instruction, self._answer(lanes), lanes)
            return
        held = self.contents.load(instruction, where, lanes, size)
        if held is None:
            registers.write_all(instruction, None, lanes)
        else:
            registers.write_words(instruction, held, lanes)

    def _answer(self, lanes: Bits) -> Words | None:
        if self.environment.atomic is None:
            return None
        return np.where(lanes, self.environment.atomic, 0).astype(np.uint32)

    def _global(self, warp: _Warp, instruction: Instruction, where: Longs, lanes: Bits, size: int) -> Access:
        touched = addresses.sectors(where, lanes)
        region = (touched[0] * addresses.SECTOR >> REGION_SHIFT) - 1
        wavefronts = addresses.line_wavefronts(where, lanes, size)
        if instruction.base not in ("LDG", "LD"):
            moved = len(touched) * addresses.SECTOR
            self.written[region] = self.written.get(region, 0) + moved
            return Access(wavefronts, missed=moved, region=region)
        missed, filler = 0, None
        for sector in touched:
            if sector in self.lines:
                filler = self.lines[sector]
                self.lines.move_to_end(sector)
                continue
            missed += addresses.SECTOR
            if "STRONG" not in instruction.modifiers:
                self.lines[sector] = (warp.number, len(warp.trace.accesses))
                if len(self.lines) > self.capacity:
                    self.lines.popitem(last=False)
        self.read[region] = self.read.get(region, 0) + missed
        return Access(wavefronts, missed, region, filler)

    def _shared_values(
        self, registers: Registers, instruction: Instruction, where: Longs | None, lanes: Bits, size: int
    ) -> None:
        words = max(1, size // 4)
        chosen = np.flatnonzero(lanes)
        first = None if where is None else [int(each) for each in where[chosen]]
        if instruction.base == "STS":
            for word, value in enumerate(registers.stored(instruction, words)):
                self._keep(first, word, None if value is None else value[chosen])
        else:
            found = [self._kept(first, word, lanes) for word in range(words)]
            registers.write_words(instruction, found, lanes)

    def _keep(self, first: list[int] | None, word: int, value: Value) -> None:
        """Remember the words stored, by address; forget what unknown ones overwrite."""
        if first is None:
            self.shared.clear()
        elif value is not None:
            self.shared.update((key + 4 * word, int(each)) for key, each in zip(first, value, strict=True))
        elif self.shared:
            for key in first:
                self.shared.pop(key + 4 * word, None)

    def _kept(self, first: list[int] | None, word: int, lanes: Bits) -> Value:
        if first is None or not self.shared:
            return None
        keys = [key + 4 * word for key in first]
        if any(key not in self.shared for key in keys):
            return None
        value = ZERO.copy()
        value[lanes] = [self.shared[key] for key in keys]
        return value
