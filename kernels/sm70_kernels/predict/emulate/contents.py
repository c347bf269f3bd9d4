"""The integers in global memory that a launch declares (lengths, block tables): what a load of them gives each lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sm70_kernels.predict.emulate.environment import REGION_SHIFT

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from sm70_kernels.predict.emulate.arithmetic import Bits, Longs, Value
    from sm70_kernels.predict.machine.sass import Instruction

_WORD = 4


class Contents:
    """The declared bytes by buffer, as one block sees them: a byte that the block stores to is unknown from then on."""

    def __init__(self, declared: Mapping[int, bytes]) -> None:
        self._bytes = {region: np.frombuffer(held, np.uint8) for region, held in declared.items() if held}
        self._overwritten: dict[int, npt.NDArray[np.bool_]] = {}

    def load(self, instruction: Instruction, where: Longs | None, lanes: Bits, size: int) -> list[Value] | None:
        """Return the words that a load of `size` bytes a lane gives, None where a byte of any lane is not known.

        Narrow loads are extended to a word, with the sign where the instruction says so.
        """
        places = self._places(where, lanes, size)
        if places is None:
            return None
        region, offsets = places
        held = self._bytes[region]
        if int(offsets.max()) >= len(held) or (
            region in self._overwritten and bool(self._overwritten[region][offsets].any())
        ):
            return None
        found = np.zeros((32, max(size, _WORD)), np.uint8)
        found[lanes, :size] = held[offsets]
        if size < _WORD and {"S8", "S16"} & set(instruction.modifiers):
            found[:, size:] = np.where(found[:, size - 1] > 127, 255, 0)[:, None]
        words = found.view(np.uint32)
        return [words[:, number].copy() for number in range(words.shape[1])]

    def overwrite(self, where: Longs | None, lanes: Bits, size: int) -> None:
        """Forget what a store or an atomic of `size` bytes a lane covers; all, where its address is not known."""
        if where is None:
            self._bytes.clear()
            return
        places = self._places(where, lanes, size)
        if places is not None:
            region, offsets = places
            held = self._overwritten.setdefault(region, np.zeros(len(self._bytes[region]), np.bool_))
            held[offsets[offsets < len(held)]] = True

    def _places(self, where: Longs | None, lanes: Bits, size: int) -> tuple[int, npt.NDArray[np.int64]] | None:
        """Return the declared buffer that all lanes are in, and the bytes [active lanes, size] that they mean there."""
        if where is None or not self._bytes:
            return None
        active = where[lanes].astype(np.int64)
        regions = (active >> REGION_SHIFT) - 1
        region = int(regions[0])
        if region not in self._bytes or (regions != region).any():
            return None
        return region, (active & (1 << REGION_SHIFT) - 1)[:, None] + np.arange(size)
