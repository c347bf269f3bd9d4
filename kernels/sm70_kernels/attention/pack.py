"""The order of keys and values inside a page on a GPU: csrc/attention/layout.cuh in Python.

Where the kernels serve (`attention.operator.is_packed`), a KV cache has the operators' shape
[pages, 2, page_size, Hkv, D] and its strides between pages and between keys and values; page_size is a multiple of 16,
and the page_size * Hkv * D elements of a page's keys, and of its values, lie without gaps on a 16-byte boundary. Their
order is [Hkv][tile of 16 tokens][fragments], not that of the shape. Whoever allocates the cache has nothing else to do;
whoever reads or writes it otherwise than by these operators goes through `pack` and `unpack`. Zeroing or copying whole
pages is safe.
"""

from __future__ import annotations

from functools import cache

import torch

from sm70_kernels.lanes import HALVES, LANES, b_element, quad_pair

TILE = 16
"""Tokens whose keys, and values, lie together."""
BYTES = 16
"""Of a lane's load."""
CODES = (0, 2, 1, 3)
"""Which of four neighbouring codes of 8 bits stands in each byte of a word."""


@cache
def order(head: int, code_bytes: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for keys, and for values, which element token * head + d of a tile [16, head] stands at each place.

    `code_bytes` is what an element takes, 1 or 2; int64[16 * head] each. The first call for a device copies to it, so
    it cannot be captured in a CUDA graph; later ones can.
    """
    run = BYTES // code_bytes
    inner = [4 * (i // 4) + CODES[i % 4] if code_bytes == 1 else i for i in range(run)]
    keys, values = [], []
    for step in range(head // (2 * run)):
        for lane in range(LANES):
            token = 8 * (quad_pair(lane) & 1) + b_element(lane, 0).column
            first = (2 * step + (quad_pair(lane) >> 1)) * run
            keys += [token * head + first + i for i in inner]
    for piece in range(head // 32):
        for part in range(code_bytes):
            for lane in range(LANES):
                element = 32 * piece + 8 * quad_pair(lane) + b_element(lane, HALVES - 1).column
                values += [(part * run + i) * head + element for i in inner]
    return torch.tensor(keys, device=device), torch.tensor(values, device=device)


def tiles_of(kv_cache: torch.Tensor) -> torch.Tensor:
    """Return a packed cache as a view [pages, 2, Hkv, tiles, 16 * D]. Raises RuntimeError where a page has gaps."""
    _, _, page_size, kv_heads, head = kv_cache.shape
    return kv_cache.flatten(2).view(*kv_cache.shape[:2], kv_heads, page_size // TILE, TILE * head)


def untiled(tiles: torch.Tensor, head: int) -> torch.Tensor:
    """Return packed tiles [pages, 2, Hkv, tiles, 16 * head] as a copy [pages, 2, tokens, Hkv, head] in plain order."""
    halves = []
    for half, places in enumerate(order(head, tiles.element_size(), tiles.device)):
        plain = torch.empty_like(tiles[:, half], memory_format=torch.contiguous_format)
        plain[..., places] = tiles[:, half]
        halves.append(plain.unflatten(-1, (TILE, head)).flatten(2, 3).transpose(1, 2))
    return torch.stack(halves, dim=1)


def unpack(kv_cache: torch.Tensor) -> torch.Tensor:
    """Return a packed cache in the order of its shape, as a copy."""
    return untiled(tiles_of(kv_cache), kv_cache.shape[4])


def pack(kv_cache: torch.Tensor) -> torch.Tensor:
    """Return a copy of a cache that lies in the order of its shape, in that of a GPU and without gaps."""
    pages, _, page_size, kv_heads, head = kv_cache.shape
    halves = []
    for half, places in enumerate(order(head, kv_cache.element_size(), kv_cache.device)):
        tiles = kv_cache[:, half].transpose(1, 2).reshape(pages, kv_heads, page_size // TILE, TILE * head)
        halves.append(tiles[..., places].reshape(pages, page_size, kv_heads, head))
    return torch.stack(halves, dim=1)
