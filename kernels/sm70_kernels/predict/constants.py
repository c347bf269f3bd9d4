"""Every figure of the predicting model: the machine's from `hardware.py`, all others from `constants.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from sm70_kernels.hardware import MACHINE

FILE = Path(__file__).with_name("constants.toml")

Corner = Literal["slow", "expected", "fast"]
"""Which end of every range a prediction takes; `expected` is what is printed unless a range is asked for."""


@dataclass(frozen=True, slots=True)
class Constants:
    """One corner of the machine. Latencies in SM cycles, throughputs in cycles an instruction, as the file says."""

    sms: float
    sub_cores: float
    clock: float
    dram_bandwidth: float
    l2_bandwidth: float
    l2_port: float
    l2_bytes: float
    l1_bytes: float
    shared: float
    l1: float
    l2: float
    dram: float
    dram_loaded: float
    atomic: float
    fence: float
    shuffle: float
    special_register: float
    transcendental: float
    constant: float
    operands_read: float
    barrier: float
    hmma_accumulate: float
    hmma_result: float
    taken_branch: float
    fma: float
    alu: float
    half: float
    double: float
    special: float
    hmma_step: float
    round_robin: float
    control: float
    queue_dispatch: float
    shared_wavefront: float
    l1_wavefront: float
    queue_depth: float
    bank_conflict: float
    fetch_bytes: float
    fetch: float
    fetch_miss: float
    ramp: float
    gap: float
    block: float
    gemm_share: float
    stream_bandwidth: float

    @property
    def dram_bytes_a_cycle(self) -> float:
        """Usable DRAM bandwidth of the whole card, in bytes an SM cycle."""
        return self.dram_bandwidth / self.clock

    @property
    def l2_bytes_a_cycle(self) -> float:
        """L2 read bandwidth of the whole card, in bytes an SM cycle."""
        return self.l2_bandwidth / self.clock

    @property
    def products_a_cycle(self) -> float:
        """Multiplications that all tensor cores do in an SM cycle."""
        return products_a_cycle(self.sms, self.sub_cores, self.hmma_step)

    def microseconds(self, cycles: float) -> float:
        """Return the time of so many SM cycles."""
        return cycles / self.clock / 1e3


def products_a_cycle(sms: float, sub_cores: float, hmma_step: float) -> float:
    """Return the multiplications of all tensor cores in an SM cycle: four 8x8x4 products in four steps of an m8n8k4."""
    return sms * sub_cores * 4 * 8 * 8 * 4 / (4 * hmma_step)


def described() -> dict[str, dict[str, Any]]:
    """Return every figure: value, both ends, unit and source by name."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    machine = {name: figure._asdict() for name, figure in MACHINE.items()}
    return machine | {name: row for table in tables.values() for name, row in table.items()}


@cache
def constants(corner: Corner = "expected") -> Constants:
    """Return the machine at one end of every range: `slow`, `expected` or `fast`."""
    key = {"slow": "slow", "expected": "value", "fast": "fast"}[corner]
    return Constants(**{name: float(row[key]) for name, row in described().items()})
