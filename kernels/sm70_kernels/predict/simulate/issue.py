"""An instruction as a sub-core's issue logic sees it: its control word, its pipe, and what it keeps busy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm70_kernels.predict.machine.pipes import PIPES, operation

if TYPE_CHECKING:
    from sm70_kernels.predict.constants import Constants
    from sm70_kernels.predict.machine.sass import Instruction

FETCH_LINE = 8
"""Instructions of a 128-byte line of code."""


@dataclass(frozen=True, slots=True)
class Issue:
    """What decides when an instruction issues and what waits for it; barriers are -1 where there is none.

    `kind` is plain, branch, barrier, tensor, special, shared, load, store or atomic; `line` the line of code it is in.
    """

    stall: float
    yields: bool
    wait: tuple[int, ...]
    write: int
    read: int
    pipe: int
    occupancy: float
    kind: str
    latency: float
    line: int


def issue(index: int, instruction: Instruction, before: Instruction | None, machine: Constants) -> Issue:
    """Return how an instruction issues, given the one before it in the code."""
    control, kind = instruction.control, operation(instruction)
    occupancy = getattr(machine, kind.occupancy)
    stall = max(1.0, float(control.stall))
    if control.yields and stall < 2:
        stall = 2.0
    name = "plain"
    if instruction.never:
        occupancy = 1.0
    elif kind.flow == "barrier":
        name = "barrier"
    elif kind.flow == "branch":
        name = "branch"
    elif kind.space == "global":
        name = "load" if kind.loads and kind.latency == "l1" else "atomic" if kind.loads else "store"
    elif kind.space is not None:
        name = "shared"
    elif kind.pipe == "tensor":
        name = "tensor"
    elif kind.latency is not None:
        name = "special"
    if bank_conflict(instruction, before):
        occupancy += machine.bank_conflict
    return Issue(
        stall,
        control.yields,
        _waits(instruction),
        -1 if control.write is None else control.write,
        -1 if control.read is None else control.read,
        PIPES.index("control" if instruction.never else kind.pipe),
        occupancy,
        name,
        getattr(machine, kind.latency) if kind.latency else 0.0,
        index // FETCH_LINE,
    )


def _waits(instruction: Instruction) -> tuple[int, ...]:
    """Return the barriers that must be free. DEPBAR may leave some of a barrier's loads open: taken as none."""
    named = re.match(r"SB([0-5])$", instruction.operands[0].text) if instruction.base == "DEPBAR" else None
    return (*instruction.control.wait, int(named[1])) if named else instruction.control.wait


def bank_conflict(instruction: Instruction, before: Instruction | None) -> bool:
    """Whether an instruction reads three different registers of one of the two register banks.

    What the instruction before it keeps in the reuse cache of the same operand is not read again.
    """
    if operation(instruction).pipe not in ("fma", "alu", "half"):
        return False
    kept = () if before is None or before.control.yields else before.operands
    read = {
        each.index
        for place, each in enumerate(instruction.operands[1:], start=1)
        if each.kind == "register" and each.index is not None
        if not (place < len(kept) and kept[place].index == each.index and kept[place].text.endswith(".reuse"))
    }
    return len(read) == 3 and len({index % 2 for index in read}) == 1
