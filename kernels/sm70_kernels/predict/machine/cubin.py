"""A specialisation's machine code, and what its ELF sections say of it: registers and static shared memory."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sm70_kernels.build.first_use import obtain
from sm70_kernels.predict.machine.sass import Program, disassemble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm70_kernels.registry import Specialisation


@dataclass(frozen=True, slots=True)
class Code:
    """One kernel's program, the registers of a thread, and the static shared memory of a block (bytes).

    `constants` has the constant banks that the compiler filled, by number.
    """

    program: Program
    registers: int
    static_shared: int
    constants: Mapping[int, bytes]


@lru_cache(maxsize=256)
def code_of(spec: Specialisation) -> Code:
    """Return the code of a specialisation, compiled on its first use. Raises KernelError."""
    return read(obtain(spec, "cubin"), spec.kernel.entry)


def read(cubin: bytes, entry: str) -> Code:
    """Return the code of `entry` in a cubin. Raises KernelError when it cannot be disassembled."""
    registers = static_shared = 0
    constants: dict[int, bytes] = {}
    for section in _sections(cubin):
        if section.name == f".text.{entry}":
            # The linker keeps the register count in the top byte of the section's info.
            registers = section.info >> 24
        elif section.name == f".nv.shared.{entry}":
            static_shared = section.size
        elif found := re.fullmatch(rf"\.nv\.constant([1-9])(?:\.{re.escape(entry)})?", section.name):
            constants[int(found[1])] = section.data
    return Code(disassemble(cubin, entry), registers, static_shared, constants)


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    size: int
    info: int
    data: bytes


def _sections(elf: bytes) -> list[_Section]:
    """Return the sections of a 64-bit little-endian ELF file."""
    (start,) = struct.unpack_from("<Q", elf, 40)
    size, count, names_at = struct.unpack_from("<HHH", elf, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", elf, start + size * number) for number in range(count)]
    names = elf[rows[names_at][4] : rows[names_at][4] + rows[names_at][5]]
    return [
        _Section(names[row[0] : names.index(b"\0", row[0])].decode(), row[5], row[7], elf[row[4] : row[4] + row[5]])
        for row in rows
    ]
