"""Where operators get the memory of their results, so that a proof can poison it and put guards around it."""

from __future__ import annotations

import contextlib
import math
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GUARD_BYTES = 512
"""On each side of a result: a multiple of every alignment that a kernel may want, and wider than a warp's access."""

POISON = 0xFF
"""Every byte of a fresh result; FP16, FP32 and FP64 all read it as not a number."""

GUARD = 0xA5


class Watch:
    """The results that were allocated while a proof watched."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a poisoned tensor between two guards."""
        size = math.prod(shape) * dtype.itemsize
        buffer = torch.full((size + 2 * GUARD_BYTES,), GUARD, dtype=torch.uint8, device=device)
        inside = buffer[GUARD_BYTES : GUARD_BYTES + size]
        inside.fill_(POISON)
        self._buffers.append(buffer)
        return inside.view(dtype).view(shape)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of `x` between two guards, with its strides and place within 512 bytes, gaps guarded too."""
        if any(not step and size > 1 for size, step in zip(x.shape, x.stride(), strict=True)):
            x = x.contiguous()
        span = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
        before = GUARD_BYTES + x.data_ptr() % GUARD_BYTES
        size = span * x.element_size()
        buffer = torch.full((before + size + GUARD_BYTES,), GUARD, dtype=torch.uint8, device=x.device)
        self._buffers.append(buffer)
        inside = buffer[before : before + size].view(x.dtype)
        return inside.as_strided(x.shape, x.stride(), inside.storage_offset()).copy_(x)

    def intact(self) -> bool:
        """Say whether no guard byte changed. Waits for the device."""
        ends = [end for each in self._buffers for end in (each[:GUARD_BYTES], each[-GUARD_BYTES:])]
        return all(bool((end == GUARD).all()) for end in ends)


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
