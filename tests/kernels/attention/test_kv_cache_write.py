"""`sm70.kv_cache_write`: keys and values into their slots, as they are or in 8 bits."""

from __future__ import annotations

import pytest
import torch

import sm70_kernels.attention.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels.attention.kv_format import decoded, encoded

ONE = torch.ones(1)
GREATEST = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}


def rows(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def caches(pages: int, page_size: int, heads: int, head: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a cache whose pages lie apart, and all of its memory, every byte 0xFF."""
    pool = torch.full((pages, 3, page_size, heads, head * dtype.itemsize), 0xFF, dtype=torch.uint8).view(dtype)
    return pool[:, :2], pool


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("page_size", [1, 16, 784])
def test_each_token_goes_to_its_slot_and_nothing_else_changes(
    dtype: torch.dtype, kv_dtype: str, page_size: int
) -> None:
    cache, pool = caches(800 // page_size, page_size, 2, 8, dtype if kv_dtype == "auto" else torch.uint8)
    key, value = rows(6, 2, 8, dtype=dtype), rows(6, 2, 8, dtype=dtype, seed=1)
    key[1], value[4] = torch.nan, torch.nan
    k_scale, v_scale = torch.tensor([0.25]), torch.tensor([3.0])
    slots = torch.tensor([0, -1, 783, 17, -1, 402])
    wanted = pool.clone()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for half, x, scale in ((0, key, k_scale), (1, value, v_scale)):
                wanted[slot // page_size, half, slot % page_size] = encoded(x[token], kv_dtype, scale)
    torch.ops.sm70.kv_cache_write(key, value, cache, slots, kv_dtype, k_scale, v_scale)
    assert torch.equal(pool.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("slots", [[], [-1], [-1, -1, -1], [-1, 0, -1], [0], [5, -1]], ids=str)
def test_padding_writes_nothing(slots: list[int]) -> None:
    cache, pool = caches(2, 4, 1, 2, torch.float16)
    key = rows(3, 1, 2)
    torch.ops.sm70.kv_cache_write(key, key + 1, cache, torch.tensor(slots).long(), "auto", ONE, ONE)
    written = {slot for slot in slots if slot >= 0}
    for slot in range(8):
        seen = cache[slot // 4, :, slot % 4, 0]
        if slot in written:
            assert torch.equal(seen, torch.stack((key[slots.index(slot), 0], key[slots.index(slot), 0] + 1)))
        else:
            assert bool((seen.view(torch.uint8) == 0xFF).all())
    assert bool((pool[:, 2].view(torch.uint8) == 0xFF).all())


@pytest.mark.parametrize("kv_dtype", GREATEST)
def test_values_too_great_are_saturated_and_nan_stays(kv_dtype: str) -> None:
    greatest = GREATEST[kv_dtype]
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30, -1e30, greatest * 2, greatest, 0.0, -0.0, 1e-30])
    stored = decoded(encoded(x, kv_dtype, torch.tensor([2.0])), kv_dtype, torch.float32)
    assert stored[2].isnan()
    wanted = torch.tensor([greatest, -greatest, 0, greatest, -greatest, greatest, greatest / 2, 0, 0, 0])
    assert torch.equal(stored.nan_to_num(), wanted)
    assert bool(stored[8].signbit())


@pytest.mark.parametrize("kv_dtype", GREATEST)
def test_every_code_comes_back_and_halves_round_to_even(kv_dtype: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = decoded(codes, kv_dtype, torch.float64)
    finite = values.isfinite()
    assert torch.equal(encoded(values.float(), kv_dtype, ONE)[finite], codes[finite])
    assert torch.equal(encoded(values.double(), kv_dtype, ONE)[finite], codes[finite])
    positive = values[finite & (values >= 0)].sort().values.unique()
    middles = (positive[:-1] + positive[1:]) / 2
    rounded = decoded(encoded(middles.float(), kv_dtype, ONE), kv_dtype, torch.float64)
    even = torch.where(torch.arange(len(middles)) % 2 == 0, positive[:-1], positive[1:])
    assert torch.equal(rounded, even)


def test_what_was_written_is_what_attention_reads() -> None:
    for kv_dtype in ("auto", *GREATEST):
        cache, _ = caches(3, 16, 1, 8, torch.float16 if kv_dtype == "auto" else torch.uint8)
        key, value, scale = rows(1, 1, 8), rows(1, 1, 8, seed=1), torch.tensor([0.01])
        torch.ops.sm70.kv_cache_write(key, value, cache, torch.tensor([37]), kv_dtype, scale, scale)
        table, length, starts = (torch.tensor(x, dtype=torch.int32) for x in ([[2]], [1], [0, 1]))
        cache[2, :, 0] = cache[2, :, 5]
        out = torch.zeros(1, 1, 8)
        where = (cache, table, length, starts, out)
        torch.ops.sm70.attention_decode(key, *where, 1.0, kv_dtype, scale, scale)
        assert torch.allclose(out, value.float(), rtol=0.13 if kv_dtype == "fp8_e5m2" else 0.07, atol=1e-3)
