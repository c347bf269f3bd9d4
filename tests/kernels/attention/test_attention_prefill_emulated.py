"""The prefill kernel's own source, run on the CPU thread by thread, against float64."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.attention import operator
from tests.kernels.attention.paged_caches import PagedCache, Sizes, integers, packed_pool, relative
from tests.kernels.kernel_emulation import COMPILER, Emulator

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

GATES = {"auto": 2e-3, "fp8_e4m3": 4e-3, "fp8_e5m2": 4e-3}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(autouse=True)
def on_the_cpu(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "launch", emulator.launch)


def attend(cache: PagedCache, query: torch.Tensor, starts: torch.Tensor, out: torch.Tensor) -> None:
    where = (query, packed_pool(cache), cache.block_table, cache.seq_lens, starts, out, 0.25)
    operator._attention_prefill_on_gpu(*where, cache.sizes.kv_dtype, cache.k_scale, cache.v_scale)


@pytest.mark.parametrize(
    ("sizes", "lengths", "rows"),
    [
        (Sizes(kv_heads=1, group=6, head=256, page_size=48), (150, 1, 0, 17), (23, 1, 1, 17)),
        (Sizes(kv_heads=1, group=6, head=256, kv_dtype="fp8_e4m3", page_size=784), (129, 40), (12, 0)),
        (Sizes(kv_heads=2, group=3, head=64, kv_dtype="fp8_e5m2"), (300, 16), (25, 16)),
        (Sizes(kv_heads=4, group=1, head=128, page_size=32), (128, 127), (70, 3)),
        (Sizes(kv_heads=1, group=8, head=64, kv_dtype="fp8_e4m3", page_size=144), (33, 257), (33, 9)),
    ],
    ids=str,
)
def test_rows_and_lengths_of_any_number(
    sizes: Sizes, lengths: tuple[int, ...], rows: tuple[int, ...], emulator: Emulator
) -> None:
    """Rows beyond the last sequence are not a number, as is all that no sequence holds; they stay untouched."""
    cache = PagedCache(sizes, lengths)
    starts = integers(0, *torch.tensor(rows).cumsum(0).tolist())
    query = cache.query(sum(rows) + 2)
    query[sum(rows) :] = torch.nan
    outs = []
    for _ in range(2):
        emulator.seed += 1
        outs.append(torch.full_like(query, 7))
        attend(cache, query, starts, outs[-1])
    assert torch.equal(*outs)
    for number, length in enumerate(lengths):
        part = slice(int(starts[number]), int(starts[number + 1]))
        if length == 0:
            assert bool((outs[0][part] == 0).all())
        elif rows[number]:
            assert relative(outs[0][part], cache.exact(query[part], number)) < GATES[sizes.kv_dtype]
    assert bool((outs[0][sum(rows) :] == 7).all())


@pytest.mark.parametrize("kv_dtype", GATES)
@pytest.mark.parametrize("half", [0, 1])
def test_a_nan_in_use_stays_visible_and_in_its_sequence(kv_dtype: str, half: int) -> None:
    cache = PagedCache(Sizes(head=64, kv_dtype=kv_dtype, page_size=32), (140, 140))
    page = int(cache.block_table[0, 5 // 32])
    cache.kv_cache[page, half, 5, 0, 37] = torch.nan if kv_dtype == "auto" else 0x7F
    query = cache.query(20)
    out = torch.zeros_like(query)
    attend(cache, query, integers(0, 10, 20), out)
    group = cache.sizes.group
    seen = out[:10, :group].isnan()
    assert bool(seen.all()) if half == 0 else bool(seen[..., 37].all()) and int(seen.sum()) == 10 * group
    assert bool(out[:10, group:].isfinite().all())
    assert bool(out[10:].isfinite().all())


def test_large_scores_do_not_overflow_and_rows_may_lie_apart() -> None:
    cache = PagedCache(Sizes(head=64, kv_heads=1, group=6), (150,))
    wide, gapped = cache.normal(12, 8, 80) * 100, torch.full((12, 9, 72), 7.0, dtype=torch.float16)
    query, out = wide[:, 1:7, 8:72], gapped[:, 2:8, :64]
    attend(cache, query, integers(0, 12), out)
    assert relative(out, cache.exact(query, 0)) < 2e-3
    out.fill_(7)
    assert bool((gapped == 7).all())
