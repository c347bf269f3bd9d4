"""What is built: kernels, their specialisations, and the hash of everything that decides their machine code. Pure data.

A kernel is one `extern "C" __global__` function in one file below `csrc/`. A specialisation gives every compile-time
constant of that kernel a value; NVRTC sees them as macros, so a kernel may write `__launch_bounds__(THREADS)`. Macros
being in capitals, headers name their template parameters in small letters.

    RMS_NORM = Kernel("rms_norm", source="norm/rms_norm.cu", entry="rms_norm", params="PPPifI", constants=("THREADS",))
    WIDE = Specialisation(RMS_NORM, {"THREADS": 320})
    sm70_kernels.launch.launch(WIDE, grid=tokens, args=(out, x, weight, hidden, eps, stride))

The tables of what is built ahead of time are the families' `table.py` (`families.py` lists them); each has
`SPECIALISATIONS: tuple[Specialisation, ...]` and imports no torch. A specialisation that is in none of them is compiled
on its first launch.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sm70_kernels import families

if TYPE_CHECKING:
    from collections.abc import Mapping

CSRC = Path(__file__).resolve().parent.parent / "csrc"
"""The device code: `kernels/csrc` beside this package."""

FLAGS = ("--gpu-architecture=sm_70", "-std=c++17", "--ptxas-options=-v")
"""One compilation yields the sm_70 cubin, its PTX (target sm_70: any newer GPU may compile it) and ptxas' figures."""

PARAMETER_BYTES = {"P": 8, "q": 8, "Q": 8, "i": 4, "I": 4, "f": 4}
"""Letters of a kernel's signature, as `struct` writes them: pointer, 64-bit and 32-bit integers, float."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One device function.

    `name` is unique, in the operator's words; `source` is relative to `csrc/`; `entry` is the `extern "C"` name;
    `params` has one letter of `PARAMETER_BYTES` for each parameter in order (the build checks it against the compiled
    code); `constants` names every macro that the source wants, `THREADS` (threads of a block) always among them.
    `awaits_gpu` says that no GPU has run it yet: it is built, emulated and predicted, and serves nobody. The record in
    `verification/` vouches for every specialisation of the others.
    """

    name: str
    source: str
    entry: str
    params: str
    constants: tuple[str, ...]
    awaits_gpu: bool = False

    def __post_init__(self) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", self.name), self.name
        assert set(self.params) <= PARAMETER_BYTES.keys(), self.params
        assert "THREADS" in self.constants, f"{self.name} has no THREADS"


@dataclass(frozen=True, slots=True, eq=False)
class Specialisation:
    """A kernel with a value for each of its constants: one cubin.

    `shared_bytes` is the dynamic shared memory of a launch (bytes): it counts in the occupancy, and when it and the
    static shared memory exceed 48 KiB the loader asks the driver for it; the build refuses more than 96 KiB. Equal and
    hashable by kernel, constants and shared memory, so it may be made anew at each call; keeping one is faster.
    """

    kernel: Kernel
    constants: Mapping[str, int]
    shared_bytes: int = 0
    name: str = field(init=False)
    """Unique and usable as a file name: `rms_norm-threads320`."""
    threads: int = field(init=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        wanted, given = set(self.kernel.constants), set(self.constants)
        assert wanted == given, f"{self.kernel.name} wants the constants {sorted(wanted)}, not {sorted(given)}"
        values = {key: int(self.constants[key]) for key in self.kernel.constants}
        words = [self.kernel.name, *(f"{key.lower()}{value}" for key, value in values.items())]
        if self.shared_bytes:
            words.append(f"shared{self.shared_bytes}")
        object.__setattr__(self, "constants", values)
        object.__setattr__(self, "name", "-".join(words))
        object.__setattr__(self, "threads", values["THREADS"])
        object.__setattr__(self, "_hash", hash(self.name))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Specialisation) and self.name == other.name and self.kernel == other.kernel


@cache
def registered() -> tuple[Specialisation, ...]:
    """Return every specialisation that is built ahead of time, in the families' order."""
    found = [spec for table in families.modules("table") for spec in table.SPECIALISATIONS]
    kernels: dict[str, Kernel] = {}
    for spec in found:
        assert kernels.setdefault(spec.kernel.name, spec.kernel) == spec.kernel, f"two kernels {spec.kernel.name}"
    names = [spec.name for spec in found]
    assert len(set(names)) == len(names), f"registered twice: {sorted(n for n in set(names) if names.count(n) > 1)}"
    return tuple(found)


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def sources_of(source: str, csrc: Path = CSRC) -> dict[str, str]:
    """Return the text of `source` and of all it includes, by path relative to `csrc`; every include is written so.

    The compiler is given exactly these texts, so nothing outside them can change the machine code.
    """
    found: dict[str, str] = {}
    wanted = [source]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = (csrc / name).read_text(encoding="utf-8")
            wanted += _INCLUDE.findall(found[name])
    return found


def build_key(spec: Specialisation, compiler: str, csrc: Path = CSRC) -> str:
    """Return the hash of all that decides the machine code: what `proof_key` covers, and the compiler."""
    return hashlib.sha256(json.dumps([*_decided_by(spec, csrc), compiler]).encode()).hexdigest()


def proof_key(spec: Specialisation, csrc: Path = CSRC) -> str:
    """Return the hash of sources, constants, signature and flags: what a verification record vouches for."""
    return hashlib.sha256(json.dumps(_decided_by(spec, csrc)).encode()).hexdigest()


def _decided_by(spec: Specialisation, csrc: Path) -> list[object]:
    return [
        sorted(sources_of(spec.kernel.source, csrc).items()),
        *(spec.kernel.entry, spec.kernel.params, spec.shared_bytes),
        *(sorted(spec.constants.items()), FLAGS),
    ]


def serving_hash(csrc: Path = CSRC) -> str:
    """Return the hash of what `proof_key` covers of every kernel that does not await a GPU."""
    keys = sorted(f"{spec.name} {proof_key(spec, csrc)}" for spec in registered() if not spec.kernel.awaits_gpu)
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


def source_hash(csrc: Path = CSRC) -> str:
    """Return the hash of all device code and of the registered table: what a build and a tuning record are tied to."""
    files = sorted(path for path in csrc.rglob("*") if path.suffix in (".cu", ".cuh"))
    texts = [(path.relative_to(csrc).as_posix(), path.read_text(encoding="utf-8")) for path in files]
    table = [(spec.name, spec.kernel.source, spec.kernel.entry, spec.kernel.params) for spec in registered()]
    return hashlib.sha256(json.dumps([texts, sorted(table), FLAGS]).encode()).hexdigest()
