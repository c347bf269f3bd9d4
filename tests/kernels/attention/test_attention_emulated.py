"""The attention kernels' own source, run on the CPU thread by thread, against float64 and against one another."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.attention import cases, operator, subject, table
from sm70_kernels.attention.kv_format import decoded, encoded
from sm70_kernels.attention.pack import unpack
from sm70_kernels.proof.prove import prove
from sm70_kernels.proof.subject import subjects
from tests.kernels.attention.paged_caches import PagedCache, Sizes, integers, packed_pool, relative
from tests.kernels.kernel_emulation import COMPILER, Emulator

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm70_kernels.attention.table import Variant
    from sm70_kernels.cases import Case

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")
GATES = {"auto": 2e-3, "fp8_e4m3": 4e-3, "fp8_e5m2": 4e-3}
ONE = torch.ones(1)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(autouse=True)
def on_the_cpu(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "launch", emulator.launch)
    empty = torch.empty
    # What the kernels find in memory that was just allocated: not a number.
    monkeypatch.setattr(torch, "empty", lambda *shape, **how: empty(*shape, **how).fill_(torch.nan))


def attend(
    cache: PagedCache, query: torch.Tensor, starts: torch.Tensor, out: torch.Tensor, variant: Variant | None = None
) -> None:
    where = (query, packed_pool(cache), cache.block_table, cache.seq_lens, starts, out, 0.25)
    how = (cache.sizes.kv_dtype, cache.k_scale, cache.v_scale)
    if variant is None:
        operator._attention_decode_on_gpu(*where, *how)
    else:
        operator.decode(*where, *how, variant)


def check(cache: PagedCache, rows: tuple[int, ...]) -> None:
    """Attend with `rows` new rows of each sequence and compare; two rows beyond the last sequence stay untouched."""
    starts = integers(0, *torch.tensor(rows).cumsum(0).tolist())
    query = cache.query(sum(rows) + 2)
    query[sum(rows) :] = torch.nan
    out = torch.full_like(query, 7)
    attend(cache, query, starts, out)
    for number, length in enumerate(cache.lengths):
        part = slice(int(starts[number]), int(starts[number + 1]))
        if length == 0:
            assert bool((out[part] == 0).all())
        elif rows[number]:
            assert relative(out[part], cache.exact(query[part], number)) < GATES[cache.sizes.kv_dtype]
    assert bool((out[sum(rows) :] == 7).all())


def reordered(emulator: Emulator, run: Callable[..., torch.Tensor | None], *arguments: Any) -> torch.Tensor | None:
    emulator.seed += 1
    return run(*arguments)


def proven(case: Case, function: Callable[..., None], emulator: Emulator) -> None:
    """Prove a case, each time with another order of threads and blocks."""
    on_gpu = partial(subject.attend if "attention" in case.operator else subject.write, function, True)
    outcome = prove(
        dataclasses.replace(subjects()[case.operator], run=partial(reordered, emulator, on_gpu)), case, CPU, 2
    )
    assert outcome.passed, outcome.sentence()


@pytest.mark.parametrize("case", list(cases.cases("selftest")))
def test_the_self_test_passes(case: Case, emulator: Emulator) -> None:
    function = getattr(operator, f"_{case.operator}_on_gpu")
    proven(case, function, emulator)


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(kv_heads=2, group=6, head=64),
        Sizes(kv_heads=1, group=6, head=64, kv_dtype="fp8_e4m3", page_size=48),
        Sizes(kv_heads=3, group=1, head=128, kv_dtype="fp8_e5m2"),
        Sizes(kv_heads=1, group=8, head=128, kv_dtype="fp8_e4m3", page_size=784),
        Sizes(kv_heads=4, group=2, head=64, page_size=528),
        Sizes(kv_heads=1, group=3, head=256, kv_dtype="fp8_e4m3", page_size=32),
        Sizes(kv_heads=1, group=4, head=256),
    ],
    ids=str,
)
def test_sequences_of_any_length_and_rows_of_any_number(sizes: Sizes) -> None:
    check(PagedCache(sizes, (1, 16, 0, 17, 130, 5, 257)), (1, 2, 1, 3, 1, 0, 8))


@pytest.mark.parametrize("number", range(len(cases.PAGE_SIZES)))
def test_every_page_size_with_a_length_at_its_border(number: int) -> None:
    page_size, kv_dtype = cases.PAGE_SIZES[number], cases.FORMATS[number % 3]
    sizes = Sizes(page_size=page_size, kv_heads=1, group=6, head=64, kv_dtype=kv_dtype)
    check(PagedCache(sizes, (page_size - 1 + number % 4,)), (1,))


@pytest.mark.parametrize("length", [15, 127, 128, 129])
def test_lengths_at_the_borders_of_tiles_and_chunks(length: int) -> None:
    check(PagedCache(Sizes(kv_heads=1, group=6, head=64, kv_dtype="fp8_e4m3"), (length, length + 1)), (1, 1))


@pytest.mark.parametrize("rows", [2, 3, 5, 8, 16])
def test_rows_of_a_verification_step(rows: int) -> None:
    check(PagedCache(Sizes(kv_heads=1, group=6, head=256, kv_dtype="fp8_e4m3"), (100,)), (rows,))


@pytest.mark.parametrize(
    ("most", "least", "page_size"), [(1, 1, 16), (2, 8, 272), (3, 11, 16), (7, 1, 16), (80, 1, 272), (80, 8, 16)]
)
def test_any_number_of_partitions(most: int, least: int, page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "partitions", lambda *_: table.Partitions(most, least))
    check(PagedCache(Sizes(page_size=page_size, kv_heads=1, group=6, head=64), (330, 90, 1, 0)), (1, 3, 1, 1))


@pytest.mark.parametrize("sequences", [1, 2, 4, 8, 16, 24, 32])
def test_both_variants_have_the_same_bits(sequences: int, emulator: Emulator) -> None:
    # Of three formats in turn; the longest has several partitions of several chunks.
    kv_dtype, longest = cases.FORMATS[sequences % 3], 300 if sequences < 8 else 40
    lengths = (*(1 + 61 * number % longest for number in range(sequences - 1)), longest)
    cache = PagedCache(Sizes(kv_heads=1, group=6, head=256, kv_dtype=kv_dtype, page_size=48), lengths)
    query, starts, outs = cache.query(sequences), integers(*range(sequences + 1)), []
    for variant in (table.SINGLE, table.DUAL):
        emulator.seed += 1
        outs.append(torch.zeros_like(query))
        attend(cache, query, starts, outs[-1], variant)
    assert torch.equal(*outs)


def test_a_large_batch_takes_the_dual_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(operator, "decode", lambda *arguments: chosen.append(arguments[-1]))
    for sequences in (15, 16):
        cache = PagedCache(Sizes(kv_heads=1, group=6, head=256), (1,) * sequences)
        attend(cache, cache.query(sequences), integers(*range(sequences + 1)), cache.query(sequences))
    operator.serve_dual_from(17)
    try:
        attend(cache, cache.query(16), integers(*range(17)), cache.query(16))
    finally:
        operator.serve_dual_from(table.DUAL_FROM)
    attend(cache, cache.query(32), integers(*range(0, 33, 2)), cache.query(32))
    assert chosen == [table.SINGLE, table.DUAL, table.SINGLE, table.SINGLE]
    with pytest.raises(ValueError, match="at least 1"):
        operator.serve_dual_from(0)


@pytest.mark.parametrize("kv_dtype", GATES)
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("position", [5, 269])
def test_a_nan_in_use_stays_visible_and_stays_its_own(kv_dtype: str, half: int, position: int) -> None:
    cache = PagedCache(Sizes(head=64, kv_dtype=kv_dtype, page_size=32), (270, 270))
    page = int(cache.block_table[0, position // 32])
    stored = cache.kv_cache[page, half, position % 32, 0]
    stored[37] = torch.nan if kv_dtype == "auto" else 0x7F
    query = cache.query(2)
    out = torch.zeros_like(query)
    attend(cache, query, integers(0, 1, 2), out)
    group = cache.sizes.group
    first = out[0, :group].isnan()
    assert bool(first.all()) if half == 0 else bool(first[:, 37].all()) and int(first.sum()) == group
    assert bool(out[0, group:].isfinite().all())
    assert bool(out[1].isfinite().all())


def test_large_scores_do_not_overflow() -> None:
    cache = PagedCache(Sizes(head=64), (150,))
    query = cache.query(2) * 100
    out = torch.zeros_like(query)
    attend(cache, query, integers(0, 2), out)
    assert relative(out, cache.exact(query, 0)) < 2e-3


def test_rows_and_results_may_lie_apart() -> None:
    cache = PagedCache(Sizes(head=64, kv_heads=1, group=6), (150, 20))
    wide, gapped = cache.normal(2, 8, 80), torch.full((2, 9, 72), 7.0, dtype=torch.float16)
    query, out = wide[:, 1:7, 8:72], gapped[:, 2:8, :64]
    attend(cache, query, integers(0, 1, 2), out)
    for number in range(2):
        assert relative(out[number], cache.exact(query[number, None], number)[0]) < 2e-3
    out.fill_(7)
    assert bool((gapped == 7).all())


@pytest.mark.parametrize("kv_dtype", GATES)
@pytest.mark.parametrize(
    ("page_size", "first", "head"), [(16, 0, 64), (48, 5, 64), (32, 16, 256), (784, 777, 64)], ids=str
)
def test_neighbours_are_written_where_they_belong(
    kv_dtype: str, page_size: int, first: int, head: int, emulator: Emulator
) -> None:
    tokens, sizes = 37, (2, page_size, 2, head)
    pages = 2 + 60 // page_size
    # Projected together with their neighbours: rows lie apart.
    rows = torch.randn(2, tokens, 2, head + 8, generator=torch.Generator().manual_seed(1)).half() * 99
    key, value = rows[0, :, :, :head], rows[1, :, :, 8:]
    key[3, 0, 5], value[4, 1, 7], value[20, 0, 9] = torch.nan, torch.nan, torch.inf
    slots = torch.arange(first, first + tokens)
    slots[20] = -1
    if first == 5:
        slots = slots[torch.randperm(tokens, generator=torch.Generator().manual_seed(2))]
    storage = torch.float16 if kv_dtype == "auto" else torch.uint8
    pool = torch.full((pages, 3, *sizes[1:], storage.itemsize), 0xA5, dtype=torch.uint8).view(storage)[..., 0]
    k_scale, v_scale = torch.tensor([0.25]), torch.tensor([3.0])
    wanted = pool[:, :2].clone()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for half, x, scale in ((0, key, k_scale), (1, value, v_scale)):
                wanted[slot // page_size, half, slot % page_size] = encoded(x[token], kv_dtype, scale)
    emulator.seed += 1
    operator._kv_cache_write_on_gpu(key, value, pool[:, :2], slots, kv_dtype, k_scale, v_scale)
    assert torch.equal(unpack(pool[:, :2]).view(torch.uint8), wanted.view(torch.uint8))
    assert bool((pool[:, 2].contiguous().view(torch.uint8) == 0xA5).all())


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_every_half_becomes_the_code_that_the_reference_gives_it(kv_dtype: str) -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).view(1024, 1, 64)
    scale = torch.tensor([0.3])
    cache = torch.zeros(64, 2, 16, 1, 64, dtype=torch.uint8)
    operator._kv_cache_write_on_gpu(every, every, cache, torch.arange(1024), kv_dtype, scale, scale)
    wanted = encoded(every, kv_dtype, scale).view(64, 16, 1, 64)
    # What is not a number has several codes in E5M2.
    wanted, seen = (decoded(x, kv_dtype, torch.float32) for x in (wanted, unpack(cache)))
    for half in range(2):
        assert torch.equal(seen[:, half].isnan(), wanted.isnan())
        assert torch.equal(seen[:, half].nan_to_num(), wanted.nan_to_num())


def arguments(**changed: Any) -> dict[str, Any]:
    given = {
        "query": torch.zeros(2, 6, 64).half(),
        "kv_cache": torch.zeros(3, 2, 16, 1, 64).half(),
        "block_table": torch.zeros(2, 3).int(),
        "seq_lens": integers(1, 1),
        "query_start_loc": integers(0, 1, 2),
        "out": torch.zeros(2, 6, 64).half(),
        "scale": 1.0,
        "kv_dtype": "auto",
        "k_scale": ONE,
        "v_scale": ONE,
    }
    return given | changed


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"kv_cache": torch.zeros(3, 2, 24, 1, 64).half()}, "a page_size that is a multiple of 16 on a GPU"),
        ({"kv_cache": torch.zeros(3, 2, 16, 1, 80).half()[..., :64]}, "pages without gaps on 16-byte boundaries"),
        ({"kv_cache": torch.zeros(3, 2, 16, 1, 64)}, "a float16 kv_cache"),
        ({"query": torch.zeros(2, 6, 64)}, "float16 rows on a GPU"),
        ({"query": torch.zeros(2, 6, 65).half()[..., 1:]}, "heads on 16-byte boundaries"),
        ({"block_table": torch.zeros(2, 6).int()[:, ::2]}, "a block_table packed in its rows"),
        ({"seq_lens": torch.ones(4).int()[::2]}, "packed seq_lens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_kernel_serves_is_refused(changed: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        operator._attention_decode_on_gpu(**arguments(**changed))


def test_heads_that_no_kernel_has_are_refused() -> None:
    odd = {name: torch.zeros(2, 6, 32).half() for name in ("query", "out")}
    with pytest.raises(ValueError, match="heads of 64, 128, 256 elements"):
        operator._attention_decode_on_gpu(**arguments(**odd, kv_cache=torch.zeros(3, 2, 16, 1, 32).half()))
