"""How tensors lie in memory, as the launchers need it. Nothing here copies unless its docstring says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """Return `x` as [rows, last dimension], packed in the last; copies where its strides do not allow a view."""
    flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


def stride(x: torch.Tensor, dimension: int) -> int:
    """Return the stride in elements; 0 along a dimension of one, where torch leaves anything."""
    return 0 if x.shape[dimension] == 1 else int(x.stride(dimension))


def sixteen_bytes(tensors: Iterable[torch.Tensor], strides: Iterable[int]) -> bool:
    """Say whether FP16 rows may be read 16 bytes at a time: addresses multiples of 16, strides of 8 elements."""
    together = 0
    for x in tensors:
        together |= x.data_ptr()
    for each in strides:
        together |= 2 * each
    return together % 16 == 0


def packed(x: torch.Tensor) -> bool:
    """Say whether `x` has its elements in order and without gaps, on a 16-byte boundary."""
    return bool(x.is_contiguous()) and int(x.data_ptr()) % 16 == 0
