"""Decode attention on a real device: both variants give the same bits, and what no sequence holds is never read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sm70_kernels.attention import table
from sm70_kernels.attention.cases import FORMATS
from sm70_kernels.attention.operator import decode
from sm70_kernels.attention.pack import pack
from sm70_kernels.cases import Case
from sm70_kernels.proof.subject import subjects

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")


def arguments_of(sequences: int, length: int, rows: int, page: int, kv_format: int) -> list[Any]:
    """Return arguments of one KV head of 256 elements and 6 query heads; the cache lies in the order of its shape."""
    sizes = {"sequences": sequences, "length": length, "rows": rows, "page": page, "format": kv_format}
    case = Case("attention_decode", sizes | {"kv_heads": 1, "group": 6, "head": 256})
    return list(subjects()["attention_decode"].inputs(case, GPU))


def attended(arguments: list[Any], variant: table.Variant) -> torch.Tensor:
    query, kv_cache, block_table, seq_lens, starts, scale, kv_dtype, k_scale, v_scale = arguments
    out = torch.full_like(query, float("nan"))
    where = (query, pack(kv_cache), block_table, seq_lens, starts, out)
    decode(*where, scale, kv_dtype, k_scale, v_scale, variant)
    return out


@pytest.mark.parametrize("sequences", [1, 2, 4, 8, 16, 24, 32])
@pytest.mark.parametrize("kv_format", range(len(FORMATS)))
@pytest.mark.parametrize("length", [40, 3001])
def test_both_variants_give_the_same_bits(sequences: int, kv_format: int, length: int) -> None:
    arguments = arguments_of(sequences, length, 1, 784, kv_format)
    single, dual = (attended(arguments, variant) for variant in (table.SINGLE, table.DUAL))
    assert torch.isfinite(single).all()
    assert torch.equal(single, dual)


@pytest.mark.parametrize("kv_format", range(len(FORMATS)))
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 1000), (8, 17), (8, 1583)])
def test_what_stands_beyond_a_sequence_changes_no_bit(kv_format: int, rows: int, length: int) -> None:
    arguments = arguments_of(3, length, rows, 528, kv_format)
    wanted = attended(arguments, table.SINGLE)
    kv_cache, block_table, seq_lens = arguments[1:4]
    held = torch.zeros(kv_cache.shape[0], kv_cache.shape[2], dtype=torch.bool, device=GPU)
    for pages, tokens in zip(block_table.tolist(), seq_lens.tolist(), strict=True):
        for position in range(0, tokens, 528):
            held[pages[position // 528], : tokens - position] = True
    # Every byte of what is beyond reads as not a number in each format.
    kv_cache.transpose(1, 2)[~held] = 0xFF if kv_cache.dtype == torch.uint8 else float("nan")
    assert torch.equal(attended(arguments, table.SINGLE), wanted)
