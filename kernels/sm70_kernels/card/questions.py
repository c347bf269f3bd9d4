"""What is asked of a card: for each constant of the model a kernel that hangs on it, at two lengths. Imports no torch.

The difference between a long run and a short one has neither the start of a kernel in it nor what it does once. The
same difference is predicted, so a constant is found as the value with which the model predicts what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sm70_kernels.card import table
from sm70_kernels.predict.launch import Buffer, Launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm70_kernels.registry import Specialisation

Unit = Literal["cycles", "us"]
"""What is measured: cycles that the kernel counts itself, or the time of the whole kernel."""

WORDS = 4096
CHAIN_BYTES = 1 << 25
"""Of the chain through DRAM: five times L2."""
DRAM_STRIDE = 129 * 256
"""Odd in units of 256 bytes: a chain does not come back to a line within its steps."""


@dataclass(frozen=True, slots=True)
class Question:
    """A constant of the model, the kernel that hangs on it, and how it is launched at a length.

    `launch(sms, length)` is the launch as the model sees it, its arguments those of the kernel in order. `cold` says
    that caches must be emptied before each run.
    """

    constant: str
    about: str
    spec: Specialisation
    lengths: tuple[int, int]
    launch: Callable[[int, int], Launch]
    unit: Unit = "cycles"
    cold: bool = False


def _chain(size: int, stride: int, *, cold: bool = False) -> Callable[[int, int], Launch]:
    def launch(_: int, steps: int) -> Launch:
        # A word of zero at every place, so that the model can follow the chain.
        held = Buffer(size + 128, cold=cold, contents=bytes(size + 128))
        return Launch(1, (Buffer(128), Buffer(8), held, steps, stride, size - 1), f"steps={steps}")

    return launch


def _words(spec: Specialisation, width: int) -> Callable[[int, int], Launch]:
    def launch(_: int, trips: int) -> Launch:
        args = (Buffer(4 * spec.threads), Buffer(spec.threads // 4), Buffer(width), trips)
        return Launch(1, args, f"trips={trips}")

    return launch


def _fetch(_: int, trips: int) -> Launch:
    spec = table.FETCH
    return Launch(1, (Buffer(4 * spec.threads), Buffer(spec.threads // 4), 0.5, 1.25, 3, trips), f"trips={trips}")


def _barrier(_: int, rounds: int) -> Launch:
    spec = table.BARRIER
    return Launch(1, (Buffer(4 * spec.threads), Buffer(spec.threads // 4), rounds), f"rounds={rounds}")


def read(spec: Specialisation) -> Callable[[int, int], Launch]:
    """Return the launch of a reading kernel, one block an SM, by SMs and rounds."""

    def launch(sms: int, rounds: int) -> Launch:
        size = rounds * spec.constants["LOADS"] * sms * spec.threads * 16
        return Launch(sms, (Buffer(4 * sms * spec.threads), Buffer(size, cold=True), rounds), f"rounds={rounds}")

    return launch


def read_lengths(spec: Specialisation) -> tuple[int, int]:
    """Return rounds of a reading kernel: so many that 80 SMs read about 30 and 120 MB, more than any L2 of its time."""
    each = spec.constants["LOADS"] * 80 * spec.threads * 16
    return 30_000_000 // each, 120_000_000 // each


def bytes_in_flight(spec: Specialisation) -> int:
    """Return the bytes that an SM has asked for at a time, with one block of a reading kernel."""
    return spec.threads * spec.constants["LOADS"] * 16


def _reading(threads: int, loads: int) -> Specialisation:
    wanted = {"THREADS": threads, "LOADS": loads}
    return next(spec for spec in table.READS if spec.constants == wanted)


FULL, HALF_FULL = _reading(256, 8), _reading(64, 4)
"""32 KiB an SM in flight, which is more than DRAM needs; 4 KiB, of which latency is most."""

QUESTIONS = (
    Question("shared", "dependent loads from shared memory", table.FROM_SHARED, (256, 1024), _chain(2048, 132)),
    Question("l1", "dependent loads that hit L1", table.FROM_L1, (256, 1024), _chain(8192, 132)),
    Question("l2", "dependent loads that hit L2", table.FROM_L2, (256, 1024), _chain(1 << 20, 4224)),
    Question(
        "dram",
        "dependent loads from DRAM, memory idle",
        table.FROM_L2,
        (256, 768),
        _chain(CHAIN_BYTES, DRAM_STRIDE, cold=True),
        cold=True,
    ),
    Question(
        "shared_wavefront",
        "independent loads from shared memory, 32 warps",
        table.SHARED_RATE,
        (16, 64),
        _words(table.SHARED_RATE, 4 * WORDS),
    ),
    Question(
        "l1_wavefront",
        "independent 16-byte loads that hit L1, 16 warps",
        table.L1_RATE,
        (16, 64),
        _words(table.L1_RATE, 4 * WORDS),
    ),
    Question(
        "hmma_step",
        "four chains of m8n8k4 a warp, a warp a sub-core",
        table.TENSOR_RATE,
        (16, 64),
        _words(table.TENSOR_RATE, 16 * table.TENSOR_RATE.threads),
    ),
    Question(
        "hmma_accumulate",
        "one chain of m8n8k4 a warp",
        table.TENSOR_CHAIN,
        (16, 64),
        _words(table.TENSOR_CHAIN, 16 * table.TENSOR_CHAIN.threads),
    ),
    Question("barrier", "the block's barrier, eight warps", table.BARRIER, (64, 256), _barrier),
    Question("fetch", "a loop of 32 KiB of code, a warp a sub-core", table.FETCH, (1, 3), _fetch),
    Question("dram_bandwidth", "32 KiB an SM in flight", FULL, read_lengths(FULL), read(FULL), "us", cold=True),
    Question(
        "dram_loaded", "4 KiB an SM in flight", HALF_FULL, read_lengths(HALF_FULL), read(HALF_FULL), "us", cold=True
    ),
)
"""In the order in which they are found: each is predicted with those before it."""
