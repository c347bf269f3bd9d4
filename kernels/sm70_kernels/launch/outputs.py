"""Where operators get the memory of their results, so that a proof can poison it and put guards around it."""

from __future__ import annotations

import contextlib
import math
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GUARD_BYTES = 512
"""On each side of a result: a multiple of every alignment that a kernel may want, and wider than a warp's access."""

POISON = 0xFF
"""Every byte of a fresh result; FP16, FP32 and FP64 all read it as not a number."""

GUARD = 0xA5


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A buffer of bytes and the place in it of a tensor's bytes: shape, strides and offset of a view of just those."""

    buffer: torch.Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    size: int

    def intact(self) -> bool:
        """Say whether every byte that is not the tensor's still is a guard's."""
        ends = (self.buffer[: self.start], self.buffer[self.start + self.size :])
        if not all(bool((end == GUARD).all()) for end in ends):
            return False
        if math.prod(self.shape) == self.size:
            return True
        # There are gaps between its rows. Only they are left once its own bytes are overwritten.
        rest = self.buffer[self.start : self.start + self.size].clone()
        rest.as_strided(self.shape, self.strides).fill_(GUARD)
        return bool((rest == GUARD).all())


class Watch:
    """The results and arguments that were allocated while a proof watched."""

    def __init__(self) -> None:
        self._guarded: list[_Guarded] = []

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a poisoned tensor between two guards."""
        size = math.prod(shape) * dtype.itemsize
        buffer = torch.full((size + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device=device)
        inside = buffer[GUARD_BYTES : GUARD_BYTES + size]
        inside.fill_(POISON)
        self._guarded.append(_Guarded(buffer, (size,), (1,), GUARD_BYTES, size))
        return inside.view(dtype).view(shape)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of `x` between two guards, with its strides and place within 512 bytes, gaps guarded too."""
        if any(not step and size > 1 for size, step in zip(x.shape, x.stride(), strict=True)):
            x = x.contiguous()
        span = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
        before = GUARD_BYTES + x.data_ptr() % GUARD_BYTES
        width = x.element_size()
        size = span * width
        buffer = torch.full((before + size + GUARD_BYTES,), GUARD, dtype=torch.uint8, device=x.device)
        strides = (*(step * width for step in x.stride()), 1)
        self._guarded.append(_Guarded(buffer, (*x.shape, width), strides, before, size))
        inside = buffer[before : before + size].view(x.dtype)
        return inside.as_strided(x.shape, x.stride(), inside.storage_offset()).copy_(x)

    def intact(self) -> bool:
        """Say whether no guard byte changed. Waits for the device."""
        return all(each.intact() for each in self._guarded)


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def new(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the packed, uninitialised tensor for a result."""
    watch = _WATCH.get()
    return torch.empty(shape, dtype=dtype, device=device) if watch is None else watch.allocate(shape, dtype, device)


def new_like(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a result of the shape and place of `x`, and of its type unless `dtype` is given; faster than `new`."""
    if _WATCH.get() is None:
        return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return new(x.shape, dtype or x.dtype, x.device)


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Poison and guard every result that is allocated inside, in this thread."""
    watch = Watch()
    token = _WATCH.set(watch)
    try:
        yield watch
    finally:
        _WATCH.reset(token)
