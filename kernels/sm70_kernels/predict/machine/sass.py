"""From a cubin to instructions: nvdisasm's text and encodings, parsed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from sm70_kernels.errors import KernelError
from sm70_kernels.predict.machine.control import Control, decode

Kind = Literal["register", "predicate", "immediate", "constant", "address", "label", "other"]

BYTES = 16
"""Size of an instruction."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand. `index` is the register or predicate (None for RZ and PT), or the constant bank.

    `value` is an immediate, the offset of a constant or of an address, or a label's target; `scale` multiplies an
    address register. `negative`, `inverted` and `absolute` are applied to what is read.
    """

    kind: Kind
    index: int | None = None
    value: int | float = 0
    scale: int = 1
    negative: bool = False
    inverted: bool = False
    absolute: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `opcode` as printed (`LDG.E.128.SYS`), `base` and `modifiers` its parts."""

    address: int
    opcode: str
    base: str
    modifiers: tuple[str, ...]
    guard: Operand | None
    operands: tuple[Operand, ...]
    control: Control
    text: str

    @property
    def never(self) -> bool:
        """Whether the guard is constant false, which the assembler uses to work around hazards."""
        return self.guard is not None and self.guard.index is None and self.guard.inverted

    @property
    def target(self) -> int | None:
        """The address that a branch names."""
        return next((int(operand.value) for operand in self.operands if operand.kind == "label"), None)


@dataclass(frozen=True, slots=True)
class Program:
    """The code of one kernel, in order of addresses."""

    name: str
    instructions: tuple[Instruction, ...]


def disassembler() -> Path:
    """Return nvdisasm: `NVDISASM`, the triton wheel's, or the one on the path. Raises KernelError."""
    if configured := os.environ.get("NVDISASM"):
        return Path(configured)
    bundled = Path(sysconfig.get_path("purelib"), "triton", "backends", "nvidia", "bin", "nvdisasm")
    if bundled.exists():
        return bundled
    if found := shutil.which("nvdisasm"):
        return Path(found)
    text = f"nvdisasm is neither in the triton wheel ({bundled}) nor on the path; install triton or set NVDISASM"
    raise KernelError("disassembler_missing", text)


@lru_cache(maxsize=256)
def disassemble(cubin: bytes, entry: str) -> Program:
    """Return the code of the kernel `entry`. Raises KernelError when it cannot be disassembled."""
    tool = disassembler()
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        try:
            done = subprocess.run([tool, "-c", "-hex", path], capture_output=True, text=True, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KernelError("disassembler_failed", f"{tool} cannot be run: {error}") from error
    if done.returncode:
        raise KernelError("disassembler_failed", f"{tool} refuses {entry}: {done.stderr.strip()[:200]}")
    return parse(done.stdout, entry)


_LINE = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;?\s*/\* 0x([0-9a-f]{16}) \*/"
)
_UPPER = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/")
_SECTION = re.compile(r"\s*\.section\s+\.text\.([\w$]+),")
_LABEL = re.compile(r"([.$\w]+):\s*$")


def parse(text: str, entry: str) -> Program:
    """Return the code of `entry` from nvdisasm's listing with encodings (`-c -hex`)."""
    rows: list[tuple[int, str, str, str, int]] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    lines = iter(text.splitlines())
    inside = False
    for line in lines:
        if section := _SECTION.match(line):
            inside = section[1] == entry
        if not inside:
            continue
        if label := _LABEL.match(line):
            waiting.append(label[1])
        elif found := _LINE.match(line):
            upper = _UPPER.match(next(lines, ""))
            assert upper, line
            address = int(found[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            rows.append((address, found[2] or "", found[3], found[4], int(upper[1], 16)))
    if not rows:
        raise KernelError("disassembler_failed", f"the cubin holds no code of {entry}")
    return Program(entry, tuple(_instruction(*row, labels) for row in rows))


def _instruction(
    address: int, guard: str, opcode: str, operands: str, upper: int, labels: dict[str, int]
) -> Instruction:
    base, *modifiers = opcode.split(".")
    parts = [part.strip() for part in re.split(r",(?![^\[(]*[\])])", operands) if part.strip()]
    parsed = tuple(_operand(part, labels) for part in parts)
    condition = _operand(guard[1:], labels) if guard else None
    text = " ".join(part for part in (guard, opcode, operands) if part)
    return Instruction(address, opcode, base, tuple(modifiers), condition, parsed, decode(upper), text)


_REGISTER = re.compile(r"R(\d+|Z)(?:\.\w+)*$")
_PREDICATE = re.compile(r"P(\d+|T)$")
_CONSTANT = re.compile(r"c\[0x([0-9a-f]+)\]\s*\[(?:R(\d+|Z)(?:\+|\]$))?(-?0x[0-9a-f]+)?\]?(?:\.\w+)*$")
_ADDRESS = re.compile(r"\[(?:R(\d+|Z)(?:\.X(\d+))?(?:\.\w+)*)?\+?(-?0x[0-9a-f]+)?\]$")
_REFERENCE = re.compile(r"`\((.+)\)$")


def _operand(text: str, labels: dict[str, int]) -> Operand:
    """Parse one operand; what no rule knows becomes `other`, which reads as unknown."""
    rest = text.strip()
    inverted = rest[:1] in ("!", "~")
    rest = rest[1:] if inverted else rest
    negative = rest[:1] == "-" and not re.match(r"-(?:0x|\d)", rest)
    rest = rest[1:] if negative else rest
    absolute = rest[:1] == "|"
    rest = rest.replace("|", "")
    named = _named(rest, labels) or _immediate(rest) or Operand("other")
    return replace(named, negative=negative, inverted=inverted, absolute=absolute, text=text)


def _named(text: str, labels: dict[str, int]) -> Operand | None:
    """Return the register, predicate, constant, address or label that `text` names."""
    if found := _REGISTER.match(text):
        return Operand("register", _number(found[1]))
    if found := _PREDICATE.match(text):
        return Operand("predicate", _number(found[1]))
    if found := _CONSTANT.match(text):
        # An indexed constant is data.
        kind: Kind = "constant" if found[2] is None else "other"
        return Operand(kind, int(found[1], 16), int(found[3] or "0", 16))
    if found := _ADDRESS.match(text):
        return Operand("address", _number(found[1]), int(found[3] or "0", 16), int(found[2] or 1))
    if (found := _REFERENCE.match(text)) and found[1] in labels:
        return Operand("label", value=labels[found[1]])
    return None


def _number(digits: str | None) -> int | None:
    return None if digits in (None, "Z", "T") else int(digits or "")


def _immediate(text: str) -> Operand | None:
    if re.match(r"-?0x[0-9a-f]+$", text):
        return Operand("immediate", value=int(text, 16))
    try:
        return Operand("immediate", value=float(text))
    except ValueError:
        return None
