"""The kernels that ask the card itself: do its tensor cores do what the lane maps and the dequantisation rely on?"""

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
SPECIALISATIONS = (MMA_LANES, DEQUANT_CODES)
