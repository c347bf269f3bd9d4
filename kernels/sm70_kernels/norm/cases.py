"""Shapes of the norms: rows of the hidden size, heads of a rank, and the edges of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels.cases import Case, tokens_of
from sm70_kernels.qwen38 import GDN_HEAD, GDN_HEADS, HEAD, HIDDEN, KEY_HEADS, QUERY_HEADS, RANKS, ROTARY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.cases import Scope


def cases(scope: Scope) -> Iterator[Case]:
    """Yield every case of a scope."""
    yield from _row_cases(scope)
    yield from _head_cases(scope)


def _row_cases(scope: Scope) -> Iterator[Case]:
    """Yield rows of the hidden size, and in the suite of every size at which another kernel takes over."""
    for tokens in tokens_of(scope):
        yield Case("rms_norm", {"tokens": tokens, "hidden": HIDDEN})
        yield Case("add_rms_norm", {"tokens": tokens, "hidden": HIDDEN, "residual_bits": 32})
    yield Case("add_rms_norm", {"tokens": 8, "hidden": HIDDEN, "residual_bits": 16})
    if scope != "suite":
        return
    for hidden in (
        1,
        7,
        8,
        120,
        129,
        1000,
        1001,
        1023,
        1024,
        1032,
        2047,
        2560,
        2568,
        4096,
        5128,
        8191,
        8192,
        8200,
        16384,
    ):
        yield Case("rms_norm", {"tokens": 5, "hidden": hidden})
        for bits in (16, 32):
            yield Case("add_rms_norm", {"tokens": 5, "hidden": hidden, "residual_bits": bits})
    for gap in (8, 1):
        yield Case("rms_norm", {"tokens": 9, "hidden": HIDDEN, "gap": gap})
        yield Case("add_rms_norm", {"tokens": 9, "hidden": HIDDEN, "residual_bits": 32, "gap": gap})
    for power in (-20, -12, 12):
        yield Case("rms_norm", {"tokens": 3, "hidden": HIDDEN, "power": power})
        yield Case("add_rms_norm", {"tokens": 3, "hidden": HIDDEN, "residual_bits": 32, "power": power})
    yield Case("rms_norm", {"tokens": 0, "hidden": HIDDEN})
    yield Case("add_rms_norm", {"tokens": 0, "hidden": HIDDEN, "residual_bits": 32})


def _head_cases(scope: Scope) -> Iterator[Case]:
    """Yield the gated norm and the norm with rotary embedding, by the heads of a rank."""
    for ranks in RANKS if scope == "suite" else (4,):
        heads = {"q_heads": QUERY_HEADS // ranks, "k_heads": KEY_HEADS // ranks}
        for tokens in tokens_of(scope) if ranks == 4 else (1, 9):
            yield Case("gated_rms_norm", {"tokens": tokens, "heads": GDN_HEADS // ranks, "head": GDN_HEAD})
            yield Case("qk_norm_mrope", {"tokens": tokens, **heads, "head": HEAD, "rotary": ROTARY, "axes": 3})
    if scope != "suite":
        return
    for head in (64, 128, 256):
        yield Case("gated_rms_norm", {"tokens": 3, "heads": 5, "head": head})
    for head, rotary in ((128, 128), (128, 64), (256, 64)):
        for axes in (1, 3):
            sizes = {"tokens": 3, "q_heads": 5, "k_heads": 3, "head": head, "rotary": rotary, "axes": axes}
            yield Case("qk_norm_mrope", sizes)
    yield Case("gated_rms_norm", {"tokens": 0, "heads": 12, "head": GDN_HEAD})
    none = {"tokens": 0, "q_heads": 6, "k_heads": 1, "head": HEAD, "rotary": ROTARY, "axes": 3}
    yield Case("qk_norm_mrope", none)
