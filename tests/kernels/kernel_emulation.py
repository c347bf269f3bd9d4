"""Launch a specialisation on the CPU: its source is compiled by g++ with the PTX wrappers of `emulation/` in place."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm70_kernels.registry import CSRC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm70_kernels.registry import Specialisation

HERE = Path(__file__).parent / "emulation"
COMPILER = shutil.which("g++")
TYPES: dict[str, Any] = {
    "P": ctypes.c_void_p,
    "q": ctypes.c_longlong,
    "Q": ctypes.c_ulonglong,
    "i": ctypes.c_int,
    "I": ctypes.c_uint,
    "f": ctypes.c_float,
}


class Emulator:
    """Stands in for `sm70_kernels.launch.launch` with tensors on the CPU; keeps what it compiles in `folder`.

    `seed` decides in which order threads and blocks take turns.
    """

    def __init__(self, folder: Path) -> None:
        self.seed = 0
        self._folder = folder
        self._compiled: dict[str, ctypes.CDLL] = {}

    def launch(self, spec: Specialisation, grid: int | tuple[int, int, int], args: Sequence[Any]) -> None:
        extent = (grid, 1, 1) if isinstance(grid, int) else grid
        if spec.name not in self._compiled:
            self._compiled[spec.name] = self._compile(spec)
        values = [each.data_ptr() if hasattr(each, "data_ptr") else each for each in args]
        arguments = [TYPES[letter](value) for letter, value in zip(spec.kernel.params, values, strict=True)]
        addresses = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(each) for each in arguments])
        finished = self._compiled[spec.name].emulate(*extent, spec.threads, self.seed, addresses)
        assert finished, f"{spec.name}: its threads wait for one another for ever"

    def _compile(self, spec: Specialisation) -> ctypes.CDLL:
        text = (CSRC / spec.kernel.source).read_text(encoding="utf-8")
        dynamic = "extern __shared__ uint4 shared[];"
        macros = "".join(f"#define {name} {value}\n" for name, value in spec.constants.items())
        source = self._folder / f"{spec.name}.cpp"
        source.write_text(
            f'#include "device.hpp"\n{macros}'
            f"{text.replace(dynamic, 'uint4* shared = reinterpret_cast<uint4*>(device::shared);')}\n"
            "static void** arguments;\n"
            'extern "C" int emulate(int x, int y, int z, int threads, unsigned seed, void** at) {\n'
            "    arguments = at;\n"
            f"    const auto thread = [] {{ device::call({spec.kernel.entry}, arguments); }};\n"
            "    return device::launch({x, y, z}, threads, seed, thread);\n}\n",
            encoding="utf-8",
        )
        library = source.with_suffix(".so")
        # The wrappers here are found before those of csrc; warnings about attributes of device code are of no use.
        flags = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared", f"-I{HERE}", f"-I{CSRC}"]
        assert COMPILER
        subprocess.run([COMPILER, *flags, "-o", str(library), str(source)], check=True)
        return ctypes.CDLL(str(library))
