"""How many blocks of a kernel live on one SM of Volta at once, computed from its resources."""

from __future__ import annotations

from dataclasses import dataclass

from sm70_kernels.hardware import (
    BLOCKS_PER_SM,
    REGISTERS_PER_ALLOCATION,
    REGISTERS_PER_SM,
    SHARED_PER_ALLOCATION,
    SHARED_PER_SM,
    SUB_CORES,
    WARPS_PER_SM,
)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident `blocks` and `warps` of one SM, their `share` of its 64 warps, and what admits no more."""

    blocks: int
    warps: int
    share: float
    limited_by: str


def occupancy(threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return the occupancy on SM70 of blocks of `threads`, with `registers` a thread and `shared_bytes` a block.

    `shared_bytes` is static and dynamic shared memory together; 0 blocks means that the block fits no SM at all.
    """
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // REGISTERS_PER_ALLOCATION) * REGISTERS_PER_ALLOCATION
    # Each of the four sub-cores has a quarter of the registers, and a warp's come from one sub-core.
    resident = REGISTERS_PER_SM // SUB_CORES // max(per_warp, 1) * SUB_CORES
    shared = -(-shared_bytes // SHARED_PER_ALLOCATION) * SHARED_PER_ALLOCATION
    # The launch check counts a block's warps as if every sub-core had the same number of them.
    launchable = per_warp * -(-warps // SUB_CORES) * SUB_CORES <= REGISTERS_PER_SM
    limits = {
        "warps": WARPS_PER_SM // warps,
        "blocks": BLOCKS_PER_SM,
        "registers": resident // warps if launchable else 0,
        "shared memory": SHARED_PER_SM // shared if shared else BLOCKS_PER_SM,
    }
    limited_by = min(limits, key=lambda name: limits[name])
    blocks = limits[limited_by]
    return Occupancy(blocks, blocks * warps, blocks * warps / WARPS_PER_SM, limited_by)
