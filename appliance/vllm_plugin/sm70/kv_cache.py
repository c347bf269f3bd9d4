"""What the runner does to the caches between steps, in plain torch: vLLM's own does both with Triton kernels."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class PageZeroer:
    """Zeroes newly allocated pages of full-attention layers, so that no stale NaN meets a masked row.

    Takes the place of vLLM's `KVBlockZeroer`, whose `zero_block_ids` the runner calls at the start of a step.
    """

    def __init__(self, device: torch.device, caches: Iterable[tuple[torch.Tensor, int, int]]) -> None:
        """`caches` are (KV cache, its page dimension, its pages for each block of the scheduler)."""
        self._device = device
        self._caches: list[tuple[torch.Tensor, int, int]] = []
        seen: set[int] = set()
        for cache, dimension, ratio in caches:
            if cache.data_ptr() not in seen:
                seen.add(cache.data_ptr())
                self._caches.append((cache, dimension, ratio))

    def zero_block_ids(self, block_ids: Sequence[int]) -> None:
        """Zero the pages of the scheduler's blocks; queued on the device, waits for nothing."""
        if not block_ids:
            return
        pages: dict[int, torch.Tensor] = {}
        for cache, dimension, ratio in self._caches:
            if ratio not in pages:
                pages[ratio] = self._pages(block_ids, ratio)
            cache.index_fill_(dimension, pages[ratio], 0)

    def _pages(self, block_ids: Sequence[int], ratio: int) -> torch.Tensor:
        blocks = torch.tensor(block_ids, dtype=torch.int64)
        pages = (blocks[:, None] * ratio + torch.arange(ratio)).flatten()
        if self._device.type == "cpu":
            return pages
        return pages.pin_memory().to(self._device, non_blocking=True)


def full_attention_caches(
    groups: Iterable[Any],
    kernel_block_sizes: Sequence[int],
    cache_dtype: str,
    left_out: set[str],
    layers: dict[str, Any],
) -> list[tuple[torch.Tensor, int, int]]:
    """Return what `PageZeroer` takes, by the attention groups; layers `left_out` have no cache of their own."""
    caches = []
    for group in groups:
        spec = group.kv_cache_spec
        if type(spec) is not FullAttentionSpec or group.kv_cache_group_id >= len(kernel_block_sizes):
            continue
        size = kernel_block_sizes[group.kv_cache_group_id]
        dimension = group.backend.get_kv_cache_block_dim(
            size, spec.num_kv_heads, spec.head_size, cache_dtype_str=cache_dtype
        )
        for name in group.layer_names:
            cache = layers[name].kv_cache
            if name not in left_out and isinstance(cache, torch.Tensor):
                caches.append((cache, dimension, spec.block_size // size))
    return caches


def copy_states_on_host(sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor) -> None:
    """Copy `sizes` bytes between addresses of this process's memory; may overlap. vLLM's own is a Triton kernel."""
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, size)
