"""L2 and DRAM, which all SMs share: queues with a bandwidth and a latency each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm70_kernels.predict.constants import Constants

_WINDOW = 2000.0
"""Cycles over which the load of DRAM is felt."""


class Memory:
    """The queues of L2 and DRAM. A simulated SM stands for `alike` SMs: its accesses count so often.

    `cold` has, by buffer, the share of the bytes asked for that come from DRAM; all others are in L2. An access waits
    until those before it are served, then for a latency: DRAM's grows with the square of its load in the last cycles,
    from that of an idle memory to that of a saturated one.
    """

    def __init__(self, cold: Mapping[int, float], machine: Constants) -> None:
        self._cold = cold
        self._machine = machine
        self._dram_rate = machine.dram_bytes_a_cycle
        self._l2_rate = machine.l2_bytes_a_cycle
        self._loaded = max(0.0, machine.dram_loaded * machine.clock - machine.dram)
        self._owed: dict[tuple[int, int], float] = {}
        self._felt = 0.0
        self._felt_at = 0.0
        self.dram_free = 0.0
        self.l2_free = 0.0

    def access(self, count: int, region: int, alike: int, who: int, when: float) -> tuple[float, bool]:
        """Take `count` bytes of buffer `region` for SM `who` from `when` on.

        Returns when they are there, and whether they came from DRAM.
        """
        begin = max(self.l2_free, when)
        self.l2_free = begin + count * alike / self._l2_rate
        done = begin + self._machine.l2
        # Whole accesses go to DRAM, as many as make up the cold share.
        owed = self._owed.get((who, region), 0.0) + self._cold.get(region, 0.0) * count
        from_dram = owed >= count / 2
        self._owed[who, region] = owed - count if from_dram else owed
        return (max(done, self._dram(count * alike, when)), True) if from_dram else (done, False)

    def _dram(self, count: float, when: float) -> float:
        gone = when - self._felt_at
        if gone > 0:
            self._felt *= max(0.0, 1.0 - gone / _WINDOW)
            self._felt_at = when
        self._felt += count
        load = min(1.0, self._felt / (self._dram_rate * _WINDOW))
        begin = max(self.dram_free, when)
        self.dram_free = begin + count / self._dram_rate
        return begin + self._machine.dram + self._loaded * load * load
