"""Which specialisation of the gates serves which row: width and alignment choose it."""

from __future__ import annotations

from functools import cache

from sm70_kernels.registry import Kernel, Specialisation

GATE = Kernel(
    "gate",
    source="activation/gate.cu",
    entry="gate",
    params="PPPiiqqqq",
    constants=("THREADS", "WIDTH", "SILU"),
)


@cache
def gate(wide: bool, silu: bool) -> Specialisation:
    """Return the kernel for out = f(gate) * x; `wide` says that 16-byte accesses are allowed."""
    return Specialisation(GATE, {"THREADS": 256, "WIDTH": 8 if wide else 1, "SILU": int(silu)})


SPECIALISATIONS = tuple(gate(wide, silu) for wide in (True, False) for silu in (True, False))
