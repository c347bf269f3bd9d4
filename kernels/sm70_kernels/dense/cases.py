"""Shapes of dense layers with FP8 weights: the real ones of a rank, short ones of their forms, and odd sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels import qwen38
from sm70_kernels.cases import Case
from sm70_kernels.dense.table import EXPAND_FROM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.cases import Scope


def dense_layers(ranks: int) -> dict[str, tuple[int, int, bool]]:
    """Return the distinct dense layers of a rank: columns of the result, K, and whether they are a gate and an up."""
    # What full attention's output goes through has the shape of what a GDN layer's does.
    parts = {layer.shape: layer.part for layer in qwen38.dense_layers(ranks)}
    return {part: shape for shape, part in parts.items()}


FORMS = {"plain": (2600, 640, False), "wide": (5200, 640, False), "gated": (2600, 640, True)}
"""As `dense_layers`: short ones, of the forms of the real layers that have more than one candidate."""


def cases(scope: Scope) -> Iterator[Case]:
    """Yield dense layers: small ones of the forms that serve four ranks, in the suite also the real ones and odd sizes.

    `rows` go through every tile of rows, through the boundaries between them, and to where weights are expanded.
    """
    if scope == "benchmark":
        for layer in dense_layers(4).values():
            yield from (_dense(rows, *layer) for rows in (1, 8, 16, 24, 32, 48, 64, 128, 512, 2048, 8192))
        return
    for gated in (False, True):
        yield from (_dense(rows, 2600, 384, gated) for rows in (1, 8, 16, 24, 32, 48, 64, 128, EXPAND_FROM))
        yield _dense(5, 2600, 384, gated, channel=1)
    if scope == "suite":
        yield from _real_dense_cases()
        yield from _odd_dense_cases()


def _dense(rows: int, n: int, k: int, gated: bool, **more: int) -> Case:
    return Case("dense_w8a16_silu_mul" if gated else "dense_w8a16", {"rows": rows, "n": n, "k": k, **more})


def _real_dense_cases() -> Iterator[Case]:
    tiles_of_rows = (1, 8, 16, 24, 32, 48, 64)
    for ranks in qwen38.RANKS:
        for layer in dense_layers(ranks).values():
            yield from (_dense(rows, *layer) for rows in tiles_of_rows)
    for name in ("gate_up", "out"):
        yield from (_dense(rows, *dense_layers(4)[name]) for rows in (2, 7, 9, 31, 33, 65, 200, 1000, EXPAND_FROM))
    # GDN's b and a beside query, key, value and z at four ranks, and the LM head.
    for rows in tiles_of_rows:
        yield _dense(rows, (qwen38.GDN_COLUMNS + 2 * qwen38.GDN_HEADS) // 4, qwen38.HIDDEN, False)
        yield _dense(rows, *qwen38.output_head(4).shape)


def _odd_dense_cases() -> Iterator[Case]:
    kinds = (False, True)
    for rows in (1, 16, 24, 32, 48, 64, 256):
        yield from (_dense(rows, 600, 1100, gated, zeros=1, channel=int(rows % 32 == 0)) for gated in kinds)
    for rows in (65, 90, 129):
        yield from (_dense(rows, n, 1024, gated) for n in (64, 2500, 6000) for gated in kinds)
    yield from (_dense(rows, 1, 1, False) for rows in (1, 33))
    for n, k in ((7, 9), (31, 127), (33, 129), (100, 8), (257, 1001), (32, 17408)):
        yield from (_dense(rows, n, k, gated, channel=rows % 2) for rows in (1, 5, 33, EXPAND_FROM) for gated in kinds)
    yield from (_dense(9, 96, 512, False, gap=gap) for gap in (1, 8))
    yield from (_dense(rows, 96, 512, False, power=power) for rows in (9, EXPAND_FROM) for power in (-12, 6))
    yield from (_dense(0, 96, 512, gated) for gated in kinds)
