"""`sm70.attention_decode` and `attention_prefill`: attention over a paged KV cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sm70_kernels.attention.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels.attention import reference
from tests.kernels.attention.paged_caches import PagedCache, Sizes, integers, relative

BOTH = ("attention_decode", "attention_prefill")
ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6, torch.float64: 1e-14}
WIDE = Sizes(dtype=torch.float32)


def check(operator: str, cache: PagedCache, rows: tuple[int, ...], out_dtype: torch.dtype | None = None) -> None:
    """Attend with `rows` new rows of each sequence and compare; two rows beyond the last sequence stay untouched."""
    starts = integers(0, *torch.tensor(rows).cumsum(0).tolist())
    query = cache.query(sum(rows) + 2)
    query[sum(rows) :] = torch.nan
    out = torch.full_like(query, 7, dtype=out_dtype or query.dtype)
    cache.attend(operator, query, starts, out)
    for number in range(len(rows)):
        part = slice(int(starts[number]), int(starts[number + 1]))
        if cache.lengths[number] == 0:
            assert bool((out[part] == 0).all())
        elif rows[number]:
            assert relative(out[part], cache.exact(query[part], number)) < ROUNDING[out.dtype]
    assert bool((out[sum(rows) :] == 7).all())


@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(),
        Sizes(kv_dtype="fp8_e4m3"),
        Sizes(kv_dtype="fp8_e5m2", dtype=torch.bfloat16),
        Sizes(dtype=torch.bfloat16, page_size=7, kv_heads=1, group=6, head=16),
        Sizes(dtype=torch.float32, page_size=1, kv_heads=3, group=1, head=5),
        Sizes(dtype=torch.float32, page_size=48, group=8, kv_dtype="fp8_e4m3"),
        Sizes(dtype=torch.float32, page_size=528, kv_heads=4, group=2),
        Sizes(dtype=torch.float64),
    ],
    ids=str,
)
def test_sequences_of_any_length_in_any_pages(operator: str, sizes: Sizes) -> None:
    check(operator, PagedCache(sizes, (1, 16, 0, 17, 130, 5, 257)), (1, 2, 1, 3, 1, 0, 8))


@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize("length", [15, 31, 127, 128, 129, 256, 300])
def test_borders_of_pages_and_tiles(operator: str, length: int) -> None:
    check(operator, PagedCache(WIDE, (length, length + 1)), (1, 5))


@pytest.mark.parametrize("lengths", [(150,), (150, 0, 40), (1, 2, 3)])
def test_whole_prompts_and_chunks_of_them(lengths: tuple[int, ...]) -> None:
    check("attention_prefill", PagedCache(WIDE, lengths), tuple(min(length, 140) for length in lengths))


@pytest.mark.parametrize("operator", BOTH)
def test_the_result_may_be_wider_than_the_query(operator: str) -> None:
    check(operator, PagedCache(Sizes(), (40, 3)), (2, 3), torch.float32)


@pytest.mark.parametrize("operator", BOTH)
def test_work_in_parts_changes_nothing(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, outs = PagedCache(WIDE, (200, 30, 77)), []
    query = cache.query(24)
    for elements in (1, 1 << 14, reference.CPU.elements):
        monkeypatch.setattr(reference, "CPU", replace(reference.CPU, elements=elements))
        out = torch.zeros_like(query)
        cache.attend(operator, query, integers(0, 8, 16, 24), out)
        outs.append(out)
    assert all(relative(out, outs[0]) < 1e-6 for out in outs[1:])


def test_memory_does_not_grow_with_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    widest = []
    take = reference._Rows.take

    def watched(rows: reference._Rows, keys: torch.Tensor, *rest: torch.Tensor) -> None:
        widest.append(keys.numel())
        take(rows, keys, *rest)

    monkeypatch.setattr(reference._Rows, "take", watched)
    cache = PagedCache(replace(WIDE, page_size=784, kv_heads=1, head=4), (3000, 1))
    for operator in BOTH:
        check(operator, cache, (3, 1))
    assert max(widest) <= reference.CPU.positions * 4 * 6


def test_neighbours_change_no_bits_of_decode() -> None:
    cache = PagedCache(Sizes(), (200, 9, 130, 64, 1))
    query = cache.query(10)
    together, starts = torch.zeros_like(query), integers(0, 1, 4, 6, 9, 10)
    cache.attend("attention_decode", query, starts, together)
    for number, length in enumerate(cache.lengths):
        rows, out = query[starts[number] : starts[number + 1]], torch.zeros_like(query)
        alone = out[starts[number] : starts[number + 1]]
        where = (cache.block_table[number, None], integers(length), integers(0, rows.shape[0]))
        scales = (cache.k_scale, cache.v_scale)
        torch.ops.sm70.attention_decode(rows, cache.kv_cache, *where, alone, 0.25, "auto", *scales)
        assert torch.equal(alone, together[starts[number] : starts[number + 1]])


@pytest.mark.parametrize("operator", BOTH)
def test_bits_repeat(operator: str) -> None:
    cache = PagedCache(Sizes(), (200, 9, 130))
    query, outs = cache.query(9), []
    for _ in range(3):
        outs.append(torch.zeros_like(query))
        cache.attend(operator, query, integers(0, 3, 6, 9), outs[-1])
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize("half", [0, 1])
def test_a_nan_in_use_stays_visible_and_stays_its_own(operator: str, half: int) -> None:
    cache = PagedCache(Sizes(), (20, 20))
    page = int(cache.block_table[0, 0])
    cache.kv_cache[page, half, 5, 0, 3] = torch.nan
    query = cache.query(2)
    out = torch.zeros_like(query)
    cache.attend(operator, query, integers(0, 1, 2), out)
    first_group = out[0, : cache.sizes.group]
    assert bool(first_group[..., 3].isnan().all()) if half else bool(first_group.isnan().all())
    assert bool(out[0, cache.sizes.group :].isfinite().all())
    assert bool(out[1].isfinite().all())


@pytest.mark.parametrize("operator", BOTH)
def test_large_scores_do_not_overflow(operator: str) -> None:
    cache = PagedCache(WIDE, (150,))
    query = cache.query(2) * 1e4
    out = torch.zeros_like(query)
    cache.attend(operator, query, integers(0, 2), out)
    assert relative(out, cache.exact(query, 0)) < 1e-4


@pytest.mark.parametrize("operator", BOTH)
@pytest.mark.parametrize("sequences", [0, 2])
def test_no_rows_at_all(operator: str, sequences: int) -> None:
    cache = PagedCache(Sizes(), (3,) * sequences)
    query = cache.query(2)
    out = torch.full_like(query, 7)
    cache.attend(operator, query, integers(*[0] * (sequences + 1)), out)
    assert bool((out == 7).all())
    cache.attend(operator, query[:0], integers(*[0] * (sequences + 1)), out[:0])
