"""NVRTC 12.8: one specialisation in, cubin and PTX and the assembler's figures out. Nothing is read or written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from sm70_kernels.errors import KernelError, missing
from sm70_kernels.hardware import SHARED_PER_SM
from sm70_kernels.registry import FLAGS, PARAMETER_BYTES, sources_of

if TYPE_CHECKING:
    from types import ModuleType

    from sm70_kernels.registry import Specialisation


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread and one block take, as ptxas reports it (bytes, except the registers of a thread)."""

    registers: int
    static_shared: int
    local_memory: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The machine code of one specialisation: `cubin` for SM70, `ptx` (text, no final NUL) for anything newer."""

    cubin: bytes
    ptx: bytes
    resources: Resources


def _nvrtc() -> ModuleType:
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise KernelError(
            "compiler_missing", f"cuda-bindings is not installed, so nothing compiles: {error}"
        ) from error
    module: ModuleType = nvrtc
    return module


@cache
def compiler_version() -> str:
    """Return the compiler's name and full version, `NVRTC 12.8.93`.

    Raises KernelError (`compiler_missing`) when there is no NVRTC, or one that no longer knows SM70.
    """
    # nvrtcVersion() stops at the minor number; the PTX of an empty program tells the rest, and proves sm_70 at once.
    try:
        _, ptx, _ = _run("empty.cu", 'extern "C" __global__ void empty() {}', {}, list(FLAGS))
    except RuntimeError as error:
        text = f"this machine's NVRTC cannot compile for SM70 ({error}); nvidia-cuda-nvrtc-cu12==12.8.93 can"
        raise KernelError("compiler_missing", text) from error
    found = re.search(rb", V(\d+\.\d+\.\d+)", ptx)
    assert found, ptx[:200]
    return f"NVRTC {found[1].decode()}"


def compile_specialisation(spec: Specialisation) -> Compiled:
    """Compile one specialisation.

    Raises KernelError, its text one line, when the source does not compile, warns, spills, uses local memory, wants
    more shared memory than SM70 has, or takes other parameters than the registry says.
    """
    compiler_version()
    sources = sources_of(spec.kernel.source)
    macros = [f"--define-macro={name}={value}" for name, value in spec.constants.items()]
    try:
        cubin, ptx, log = _run(spec.kernel.source, sources.pop(spec.kernel.source), sources, [*FLAGS, *macros])
    except RuntimeError as error:
        raise missing(spec.kernel.name, f"{spec.name} does not compile: {error}") from error
    resources = parse_log(log)
    refusals = [
        *([f"spills {resources.spill_stores} bytes"] if resources.spill_stores or resources.spill_loads else []),
        *([f"keeps {resources.local_memory} bytes in local memory"] if resources.local_memory else []),
        *([f"compiles with a warning: {warning}"] if (warning := first_warning(log)) else []),
    ]
    shared = resources.static_shared + spec.shared_bytes
    if shared > SHARED_PER_SM:
        refusals.append(f"wants {shared} bytes of shared memory, static and dynamic, where SM70 has {SHARED_PER_SM}")
    sizes, wanted = parameter_sizes(ptx, spec.kernel.entry), [PARAMETER_BYTES[letter] for letter in spec.kernel.params]
    if sizes != wanted:
        refusals.append(f"takes parameters of {sizes} bytes where the registry says {wanted} ({spec.kernel.params})")
    if refusals:
        raise missing(spec.kernel.name, f"{spec.name} {', and '.join(refusals)}; change {spec.kernel.source}")
    return Compiled(cubin, ptx, resources)


_FIGURES = {
    "registers": r"Used (\d+) registers",
    "static_shared": r"(\d+) bytes smem",
    "local_memory": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
}


def parse_log(log: str) -> Resources:
    """Read ptxas' figures from the log of one kernel; functions that were not inlined add to its local memory."""
    found = {name: [int(value) for value in re.findall(pattern, log)] for name, pattern in _FIGURES.items()}
    assert found["registers"], log
    return Resources(**{name: max(values, default=0) for name, values in found.items()})


def first_warning(log: str) -> str:
    """Return the first line of the log that warns of anything but SM70's deprecation, or an empty string."""
    lines = [line.strip() for line in log.splitlines() if re.search(r"warning\b", line, re.IGNORECASE)]
    return next((line for line in lines if "are deprecated and may be removed" not in line), "")


def parameter_sizes(ptx: bytes, entry: str) -> list[int]:
    """Return the size in bytes of each parameter of `entry`, read from its PTX declaration."""
    declaration = re.search(rf"\.entry {re.escape(entry)}\(([^)]*)\)".encode(), ptx)
    if declaration is None:
        return []
    sizes = re.findall(rb"\.param (?:\.align \d+ )?\.[a-z]+(\d+) \w+(?:\[(\d+)\])?", declaration[1])
    return [int(bits) // 8 * int(count or 1) for bits, count in sizes]


def _run(name: str, text: str, headers: dict[str, str], options: list[str]) -> tuple[bytes, bytes, str]:
    """Return cubin, PTX and log. RuntimeError says in one line what the compiler objected to."""
    nvrtc = _nvrtc()
    good = nvrtc.nvrtcResult.NVRTC_SUCCESS

    def fetch(size_of: str, get: str) -> bytes:
        error, size = getattr(nvrtc, size_of)(program)
        if error != good:
            raise RuntimeError(f"{size_of}: {error.name}")
        data = bytearray(size)
        getattr(nvrtc, get)(program, data)
        return bytes(data)

    names = sorted(headers)
    error, program = nvrtc.nvrtcCreateProgram(
        text.encode(),
        name.encode(),
        len(names),
        [headers[each].encode() for each in names],
        [n.encode() for n in names],
    )
    if error != good:
        raise RuntimeError(f"nvrtcCreateProgram: {error.name}")
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = fetch("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
        if error != good:
            lines = [line.strip() for line in log.splitlines() if "error" in line]
            raise RuntimeError(lines[0] if lines else f"{error.name} {' '.join(log.split())[:300]}")
        cubin = fetch("nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        ptx = fetch("nvrtcGetPTXSize", "nvrtcGetPTX").rstrip(b"\0")
        return cubin, ptx, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)
