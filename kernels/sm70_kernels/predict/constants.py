"""Every figure of the predicting model: the machine's from `hardware.py`, all others from `constants.toml`.

A card's own record may take their place (`adopt`): then a prediction is one for that card.
"""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sm70_kernels.hardware import MACHINE

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = Path(__file__).with_name("constants.toml")

CAPABILITIES = ("7.0", "7.5")
"""Of cards that run the machine code for sm_70; what they measure may refine the model."""

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


_ADOPTED: dict[str, dict[str, Any]] = {}


def adopt(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Let these figures replace those of the same names, in this process; an empty mapping restores all.

    Each has `value`, `slow`, `fast` and `source`; the unit stays. Raises ValueError, one line, for a figure that the
    model does not have, one that is no positive number, and a value outside its own range.
    """
    own = _own()
    for name, row in figures.items():
        if name not in own:
            raise ValueError(f"{name} is no constant of the model; it has {', '.join(sorted(own))}")
        ends = [row["value"], row["slow"], row["fast"]]
        if not all(isinstance(each, int | float) and math.isfinite(each) and each >= 0 for each in ends):
            raise ValueError(f"{name}: value, slow and fast are to be numbers of at least 0, not {ends}")
        if not min(ends[1:]) <= ends[0] <= max(ends[1:]):
            raise ValueError(f"{name}: the value {ends[0]} is not between slow, {ends[1]}, and fast, {ends[2]}")
    _ADOPTED.clear()
    _ADOPTED.update({name: {**own[name], **row} for name, row in figures.items()})
    constants.cache_clear()


def measured(text: str) -> dict[str, dict[str, Any]]:
    """Return the figures in a record of `appliance bench card`, for `adopt`. Raises ValueError, one line."""
    try:
        record = json.loads(text)
        capability = str(record["capability"])
        figures = {
            name: {"value": row["value"], "slow": row["slow"], "fast": row["fast"], "source": row["source"]}
            for name, row in record["constants"].items()
        }
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a record of `appliance bench card` ({type(error).__name__}: {error})") from error
    if capability not in CAPABILITIES:
        raise ValueError(
            f"the record is of a {record.get('card', 'card')} of compute capability {capability}, which runs other "
            f"instructions; wanted one of capability {' or '.join(CAPABILITIES)}"
        )
    return figures


def described() -> dict[str, dict[str, Any]]:
    """Return every figure: value, both ends, unit and source by name; adopted ones in place of the model's."""
    return _own() | _ADOPTED


def _own() -> dict[str, dict[str, Any]]:
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    machine = {name: figure._asdict() for name, figure in MACHINE.items()}
    return machine | {name: row for table in tables.values() for name, row in table.items()}


@cache
def constants(corner: Corner = "expected") -> Constants:
    """Return the machine at one end of every range: `slow`, `expected` or `fast`."""
    key = {"slow": "slow", "expected": "value", "fast": "fast"}[corner]
    return Constants(**{name: float(row[key]) for name, row in described().items()})
