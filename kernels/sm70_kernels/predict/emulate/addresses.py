"""What a warp's 32 addresses cost: wavefronts of shared memory, sectors and lines of global memory.

Shared memory has 32 banks of 4 bytes and answers one wavefront of at most 128 bytes a cycle. A wide access is served in
parts, 32, 16 or 8 lanes at 4, 8 or 16 bytes each. Where all active lanes of every pair (n, n xor 1), or of every pair
(n, n xor 2), have the same address, two parts are served at once (stated by NVIDIA for capability 7.x).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sm70_kernels.predict.emulate.arithmetic import Bits, Longs

SECTOR = 32
LINE = 128
_BANKS = 32
_LANES = np.arange(32)


def shared_wavefronts(addresses: Longs, active: Bits, size: int) -> int:
    """Return the wavefronts of one access of `size` bytes a lane (1 to 16) to shared memory, 0 without active lanes."""
    if not active.any():
        return 0
    # Only the place within a round of the banks, and who shares an address, matter.
    moved = addresses - addresses[active].min() // np.uint64(LINE) * np.uint64(LINE)
    return _shared_wavefronts(moved.tobytes(), active.tobytes(), size)


@lru_cache(maxsize=4096)
def _shared_wavefronts(where: bytes, lanes_active: bytes, size: int) -> int:
    addresses, active = np.frombuffer(where, np.uint64), np.frombuffer(lanes_active, np.bool_)
    lanes = 32 // max(1, size // 4)
    if lanes < 32 and any(_paired(addresses, active, distance) for distance in (1, 2)):
        lanes *= 2
    total = 0
    words = np.arange(max(1, size // 4), dtype=np.uint64) * np.uint64(4)
    for start in range(0, 32, lanes):
        chosen = active[start : start + lanes]
        if chosen.any():
            touched = np.unique((addresses[start : start + lanes][chosen, None] + words) // np.uint64(4))
            total += int(np.bincount((touched % np.uint64(_BANKS)).astype(np.int64)).max())
    return total


def _paired(addresses: Longs, active: Bits, distance: int) -> bool:
    partner = _LANES ^ distance
    both = active & active[partner]
    return bool((addresses == addresses[partner])[both].all())


def sectors(addresses: Longs, active: Bits) -> list[int]:
    """Return the numbers of the 32-byte sectors that the active lanes touch, ascending. Accesses are aligned."""
    return [int(number) for number in np.unique(addresses[active] // np.uint64(SECTOR))]


def line_wavefronts(addresses: Longs, active: Bits, size: int) -> int:
    """Return how often the L1 looks up a line for one access: for each part of the warp, the lines that it touches."""
    lanes = 32 // max(1, size // 4)
    parts = [(addresses[i : i + lanes], active[i : i + lanes]) for i in range(0, 32, lanes)]
    return sum(len(np.unique(part[chosen] // np.uint64(LINE))) for part, chosen in parts if chosen.any())
