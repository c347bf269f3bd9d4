"""The kernels that ask the card itself: do its tensor cores and barriers do what the other kernels rely on?"""

from __future__ import annotations

from sm70_kernels.registry import Kernel, Specialisation

MMA_LANES = Specialisation(
    Kernel("mma_lanes", source="selftest/mma.cu", entry="mma_lanes", params="PPP", constants=("THREADS",)),
    {"THREADS": 32},
)
DEQUANT_CODES = Specialisation(
    Kernel("dequant_codes", source="selftest/dequant.cu", entry="dequant_codes", params="P", constants=("THREADS",)),
    {"THREADS": 32},
)
BARRIER_CONTROL = Kernel(
    "barrier_control",
    source="selftest/barrier.cu",
    entry="barrier_control",
    params="PPi",
    constants=("THREADS", "NAMED"),
)
NAMED_BARRIER, BLOCK_BARRIER = (Specialisation(BARRIER_CONTROL, {"THREADS": 128, "NAMED": named}) for named in (1, 0))
SPECIALISATIONS = (MMA_LANES, DEQUANT_CODES, NAMED_BARRIER, BLOCK_BARRIER)
