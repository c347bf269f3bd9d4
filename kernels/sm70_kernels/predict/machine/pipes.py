"""Which pipe of a sub-core an instruction takes, for how long, and when its result is there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sm70_kernels.predict.machine.sass import Instruction

Pipe = Literal["fma", "alu", "half", "double", "special", "tensor", "queue", "control"]
PIPES: tuple[Pipe, ...] = ("fma", "alu", "half", "double", "special", "tensor", "queue", "control")

Space = Literal["global", "shared", "queue"]
"""`queue`: takes the path of shared memory without touching it (shuffles, special registers)."""

Flow = Literal["branch", "join", "barrier", "end"]


@dataclass(frozen=True, slots=True)
class Operation:
    """How an opcode behaves. `latency` names a figure of `Constants` for those whose results a barrier guards."""

    pipe: Pipe
    occupancy: str
    latency: str | None = None
    space: Space | None = None
    flow: Flow | None = None
    loads: bool = False
    results: int = 1
    """How many operands are written, from the first on."""


def _group(operation: Operation, *names: str) -> dict[str, Operation]:
    return dict.fromkeys(names, operation)


_BY_BASE: dict[str, Operation] = {
    **_group(Operation("fma", "fma"), "FFMA", "FFMA32I", "FADD", "FADD32I", "FMUL", "FMUL32I", "IMAD", "IMUL", "IDP"),
    **_group(
        Operation("alu", "alu"),
        *("IADD3", "IADD", "LOP3", "LOP", "SHF", "SHL", "SHR", "LEA", "MOV", "MOV32I", "SEL", "PRMT", "IABS", "IMNMX"),
        *(
            "ISETP",
            "FSETP",
            "PLOP3",
            "P2R",
            "R2P",
            "FSEL",
            "FMNMX",
            "FSET",
            "BMSK",
            "SGXT",
            "VABSDIFF",
            "CS2R",
            "ISCADD",
        ),
        *("ISCADD", "PSETP", "VOTE", "I2I", "FSWZADD"),
    ),
    **_group(
        Operation("half", "half"), "HADD2", "HMUL2", "HFMA2", "HSETP2", "HSET2", "HMNMX2", "HADD2_32I", "HFMA2_32I"
    ),
    **_group(Operation("double", "double"), "DADD", "DMUL", "DFMA", "DSETP"),
    **_group(
        Operation("special", "special", "transcendental"),
        *("MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV", "FCHK"),
    ),
    **_group(Operation("tensor", "hmma_step", "hmma_accumulate"), "HMMA"),
    "LDG": Operation("queue", "queue_dispatch", "l1", "global", loads=True),
    "LD": Operation("queue", "queue_dispatch", "l1", "global", loads=True),
    "STG": Operation("queue", "queue_dispatch", "operands_read", "global", results=0),
    "ST": Operation("queue", "queue_dispatch", "operands_read", "global", results=0),
    "ATOM": Operation("queue", "queue_dispatch", "atomic", "global", loads=True),
    "ATOMG": Operation("queue", "queue_dispatch", "atomic", "global", loads=True),
    "RED": Operation("queue", "queue_dispatch", "operands_read", "global", results=0),
    "LDS": Operation("queue", "queue_dispatch", "shared", "shared", loads=True),
    "STS": Operation("queue", "queue_dispatch", "operands_read", "shared", results=0),
    "ATOMS": Operation("queue", "queue_dispatch", "atomic", "shared", loads=True),
    "SHFL": Operation("queue", "queue_dispatch", "shuffle", "queue", results=2),
    "S2R": Operation("queue", "queue_dispatch", "special_register", "queue"),
    "LDC": Operation("queue", "queue_dispatch", "constant", "queue"),
    "MEMBAR": Operation("control", "control", "fence"),
    **_group(Operation("control", "control", flow="branch"), "BRA", "JMP", "BRX", "CALL", "RET"),
    **_group(Operation("control", "control", flow="join"), "BSSY", "BSYNC", "BREAK"),
    "BAR": Operation("control", "control", "barrier", flow="barrier"),
    "EXIT": Operation("control", "control", flow="end"),
    **_group(
        Operation("control", "control", results=0),
        *("NOP", "BMOV", "WARPSYNC", "YIELD", "DEPBAR", "ERRBAR", "CCTL", "NANOSLEEP", "B2R", "R2B", "BPT", "CCTLL"),
    ),
}


@cache
def _operation(base: str) -> Operation:
    # An opcode that no rule knows is taken as one of the integer pipe; `unknown_opcodes` reports it.
    return _BY_BASE.get(base, Operation("alu", "alu"))


def operation(instruction: Instruction) -> Operation:
    """Return how an instruction behaves."""
    return _operation(instruction.base)


def unknown_opcodes(instructions: tuple[Instruction, ...]) -> list[str]:
    """Return the opcodes that no rule knows: predictions take them for instructions of the integer pipe."""
    return sorted({instruction.base for instruction in instructions} - _BY_BASE.keys())


def access_bytes(instruction: Instruction) -> int:
    """Return the bytes that each lane of a memory instruction moves."""
    widths = {"128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1, "8": 1}
    return next((widths[each] for each in instruction.modifiers if each in widths), 4)
