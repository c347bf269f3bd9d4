"""A V100-SXM2, once: what an SM holds, and the machine's figures with unit, range and source. Pure data.

`value` is what a prediction takes; `slow` and `fast` are the ends of the range, named after what they do to a kernel.
In a source [M] is measured by the named source and [D] derived; [R] is recalled from literature, [A] assumed here for
want of a figure. Latencies and throughputs, which only the predicting model uses, are in `predict/constants.toml`.
"""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One figure of the machine and the ends of its range."""

    value: float
    slow: float
    fast: float
    unit: str
    source: str


SMS = 80
SUB_CORES = 4
"""Of an SM, each with a quarter of its registers and a scheduler of its own."""
L2_BYTES = 6 * 1024 * 1024

MACHINE: dict[str, Figure] = {
    "sms": Figure(SMS, SMS, SMS, "SMs", 'docs/volta.md, "Rates and floors" [D]: V100 SXM2'),
    "sub_cores": Figure(SUB_CORES, SUB_CORES, SUB_CORES, "an SM", "CUDA programming guide 12.8, capability 7.0"),
    "clock": Figure(1.455, 1.38, 1.53, "GHz", "1.38 to 1.53 is what an SXM2 holds; the middle is taken"),
    "dram_bandwidth": Figure(
        870,
        822,
        879,
        "GB/s",
        'docs/volta.md, "Times taken on V100s": fitted (MODEL.md); the harness read at 879, copied at 822',
    ),
    "l2_bandwidth": Figure(
        2500,
        2100,
        3100,
        "GB/s",
        'docs/volta.md, "Latencies and caches": 3133 (PMC10448217); 2155 (Jia et al. 2018) [R]',
    ),
    "l2_port": Figure(48, 40, 64, "B a cycle and SM", "[A] 64 in hardware, three quarters of it reached"),
    "l2_bytes": Figure(L2_BYTES, L2_BYTES, L2_BYTES, "B", 'docs/volta.md, "Rates and floors": 6 MB'),
    "l1_bytes": Figure(131072, 131072, 131072, "B an SM with the shared", "Jia et al. 2018 [R]"),
}

# CUDA C++ Programming Guide 12.8, technical specifications of compute capability 7.0.
REGISTERS_PER_SM = 65536
WARPS_PER_SM = 64
BLOCKS_PER_SM = 32
SHARED_PER_SM = 98304
"""Bytes; what remains of the 128 KiB is L1."""
SHARED_WITHOUT_ASKING = 48 * 1024
"""Bytes of shared memory, static and dynamic together, that a block may have without asking."""

# cuda_occupancy.h of CUDA 12.8, compute capability 7.0: what an SM hands out at a time.
REGISTERS_PER_ALLOCATION = 256
SHARED_PER_ALLOCATION = 256
