"""Shapes of attention and of the KV cache's writer, by the heads of a rank, page sizes and lengths.

`format` is an index into `FORMATS`. Sequences of a case differ in length; the first is the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels import qwen38
from sm70_kernels.cases import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.cases import Scope

FORMATS = ("auto", "fp8_e4m3", "fp8_e5m2")

PAGE_SIZES = (16, 256, 528, 784, 800, 832, 1568, 1616, 1648, 2048)
"""Of the hybrid cache at several sizes of GDN state, and the smallest."""

GROUP = qwen38.QUERY_HEADS // qwen38.KEY_HEADS
AUTO, E4M3, E5M2 = range(3)


def cases(scope: Scope) -> Iterator[Case]:
    """Yield every case of a scope."""
    yield from {"selftest": _selftest, "suite": _suite, "benchmark": _benchmark}[scope]()


def _write(tokens: int, page: int, kv_format: int, kv_heads: int = 1, head: int = qwen38.HEAD) -> Case:
    sizes = {"tokens": tokens, "page": page, "format": kv_format, "kv_heads": kv_heads, "head": head}
    return Case("kv_cache_write", sizes)


def _attend(
    operator: str,
    sequences: int,
    length: int,
    rows: int,
    page: int,
    kv_format: int,
    kv_heads: int = 1,
    group: int = GROUP,
    head: int = qwen38.HEAD,
) -> Case:
    sizes = {"sequences": sequences, "length": length, "rows": rows, "page": page, "format": kv_format}
    return Case(operator, sizes | {"kv_heads": kv_heads, "group": group, "head": head})


def _selftest() -> Iterator[Case]:
    for kv_format in (AUTO, E4M3):
        yield _write(9, 16, kv_format)
        yield _attend("attention_decode", 3, 70, 1, 16, kv_format)
        yield _attend("attention_decode", 2, 40, 8, 784, kv_format)
        yield _attend("attention_prefill", 2, 90, 40, 16, kv_format)


def _suite() -> Iterator[Case]:
    yield from _lengths_and_pages()
    yield from _batches_and_heads()
    yield from _variants()
    for rows, length in ((4096, 4096), (8000, 16000), (8192, 8192), (777, 3000)):
        yield _attend("attention_prefill", 1, length, rows, 784, E4M3)


def _lengths_and_pages() -> Iterator[Case]:
    for page in PAGE_SIZES:
        for kv_format in (AUTO, E4M3, E5M2):
            yield _write(33, page, kv_format)
        for length in (page - 1, page, page + 1):
            yield _attend("attention_decode", 2, length, 1, page, length % 3)
            yield _attend("attention_prefill", 1, length, min(length, 17), page, length % 3)
    for length in (1, 15, 16, 17, 2047, 2048, 2049, 32768, 131072, 262120, 262144):
        for kv_format in (AUTO, E4M3):
            yield _attend("attention_decode", 1, length, 1, 16, kv_format)
            if length >= 8:
                yield _attend("attention_decode", 1, length, 8, 784, kv_format)
                yield _attend("attention_prefill", 1, length, 8, 784, kv_format)


def _batches_and_heads() -> Iterator[Case]:
    for sequences in (2, 4, 8, 16, 24, 32, 64):
        yield _attend("attention_decode", sequences, 300, 1, 784, AUTO)
        yield _attend("attention_decode", sequences, 300, 4, 800, E4M3)
    for rows in (2, 3, 5, 6, 7, 16):
        yield _attend("attention_decode", 3, 100, rows, 16, AUTO)
    for kv_heads in (1, 2, 4):
        for group in (1, 2, 3, 4, 6, 8):
            yield _attend("attention_decode", 2, 50, 2, 16, E4M3, kv_heads, group)
            yield _attend("attention_prefill", 2, 50, 20, 16, AUTO, kv_heads, group)
    for head in (64, 128):
        for kv_format in (AUTO, E4M3, E5M2):
            yield _write(5, 16, kv_format, 2, head)
            for rows in (1, 2, 4, 5, 6, 8):
                yield _attend("attention_decode", 2, 50, rows, 16, kv_format, 2, GROUP, head)
            yield _attend("attention_prefill", 2, 50, 33, 16, kv_format, 2, GROUP, head)


def _variants() -> Iterator[Case]:
    """Every number of row tiles, and both variants, in every format."""
    for kv_format in (E4M3, E5M2):
        for rows in range(2, 9):
            yield _attend("attention_decode", 2, 100, rows, 16, kv_format)
        for sequences in (16, 24, 32):
            yield _attend("attention_decode", sequences, 300, 1, 800, kv_format)


def _benchmark() -> Iterator[Case]:
    for kv_format, page in ((AUTO, 784), (E4M3, 1568)):
        yield from (_write(tokens, page, kv_format) for tokens in (1, 32, 8192))
        for length in (2048, 8192, 32768, 131072, 262144):
            yield _attend("attention_decode", 1, length, 1, page, kv_format)
            yield _attend("attention_decode", 1, length, 8, page, kv_format)
        yield from (_attend("attention_decode", 32, length, 1, page, kv_format) for length in (2048, 8192))
        for length in (8192, 32768, 131072):
            yield _attend("attention_prefill", 1, length, 8192, page, kv_format)
