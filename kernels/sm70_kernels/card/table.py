"""The kernels that measure a card. None serves a model."""

from __future__ import annotations

from sm70_kernels.registry import Kernel, Specialisation

EMPTY_KERNEL = Kernel("card_empty", source="card/empty.cu", entry="card_empty", params="Pi", constants=("THREADS",))
READ_KERNEL = Kernel(
    "card_read", source="card/read.cu", entry="card_read", params="PPi", constants=("THREADS", "LOADS")
)
LATENCY_KERNEL = Kernel(
    "card_latency",
    source="card/latency.cu",
    entry="card_latency",
    params="PPPiII",
    constants=("THREADS", "SPACE"),
)
RATE_KERNEL = Kernel(
    "card_rate",
    source="card/rate.cu",
    entry="card_rate",
    params="PPPi",
    constants=("THREADS", "SPACE"),
)
TENSOR_KERNEL = Kernel(
    "card_tensor",
    source="card/tensor.cu",
    entry="card_tensor",
    params="PPPi",
    constants=("THREADS", "CHAINS"),
)
BARRIER_KERNEL = Kernel(
    "card_barrier",
    source="card/barrier.cu",
    entry="card_barrier",
    params="PPi",
    constants=("THREADS",),
)
FETCH_KERNEL = Kernel(
    "card_fetch",
    source="card/fetch.cu",
    entry="card_fetch",
    params="PPffIi",
    constants=("THREADS", "PAIRS"),
)

EMPTY = Specialisation(EMPTY_KERNEL, {"THREADS": 32})
READS = tuple(
    Specialisation(READ_KERNEL, {"THREADS": threads, "LOADS": loads}) for threads in (64, 256) for loads in (1, 2, 4, 8)
)
FROM_L2, FROM_L1, FROM_SHARED = (Specialisation(LATENCY_KERNEL, {"THREADS": 32, "SPACE": space}) for space in range(3))
L1_RATE = Specialisation(RATE_KERNEL, {"THREADS": 512, "SPACE": 1})
SHARED_RATE = Specialisation(RATE_KERNEL, {"THREADS": 1024, "SPACE": 2})
TENSOR_CHAIN, TENSOR_RATE = (Specialisation(TENSOR_KERNEL, {"THREADS": 128, "CHAINS": chains}) for chains in (1, 4))
BARRIER = Specialisation(BARRIER_KERNEL, {"THREADS": 256})
FETCH = Specialisation(FETCH_KERNEL, {"THREADS": 128, "PAIRS": 1024})
"""32 KiB of code in the loop: more than a sub-core's 12 KiB, less than the 128 KiB of the level behind."""

SPECIALISATIONS = (
    EMPTY,
    *READS,
    *(FROM_L2, FROM_L1, FROM_SHARED),
    *(L1_RATE, SHARED_RATE),
    *(TENSOR_CHAIN, TENSOR_RATE),
    *(BARRIER, FETCH),
)
