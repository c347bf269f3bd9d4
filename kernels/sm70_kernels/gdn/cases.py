"""Shapes of the gated delta net's operators, by the heads of a rank, numbers of sequences, rows and lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm70_kernels import qwen38
from sm70_kernels.cases import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.cases import Scope

VERIFICATIONS = ("gdn_verify", "gdn_verify_log")


def cases(scope: Scope) -> Iterator[Case]:
    """Yield every case of a scope."""
    yield from {"selftest": _selftest, "suite": _suite, "benchmark": _benchmark}[scope]()


def _case(operator: str, sequences: int, ranks: int = 4, **more: int) -> Case:
    """Return a case with the heads of a rank, unless `more` names others."""
    sizes = {
        "sequences": sequences,
        "key_heads": qwen38.GDN_KEY_HEADS // ranks,
        "value_heads": qwen38.GDN_HEADS // ranks,
        "key_head": qwen38.GDN_HEAD,
        "value_head": qwen38.GDN_HEAD,
        "width": qwen38.CONV_WIDTH,
    }
    return Case(operator, sizes | more)


def _selftest() -> Iterator[Case]:
    yield _case("gdn_decode", 1)
    yield _case("gdn_decode", 3, padding=1)
    yield _case("gdn_prefill", 3, length=70)
    for operator in VERIFICATIONS:
        yield _case(operator, 2, rows=4)
        yield _case(operator, 3, rows=8, padding=1)


def _suite() -> Iterator[Case]:
    for ranks in qwen38.RANKS:
        for sequences in (1, 2, 7, 8, 31, 32):
            yield _case("gdn_decode", sequences, ranks, padding=int(sequences == 7))
        for length in (1, 2, 63, 64, 65, 129, 1000):
            yield _case("gdn_prefill", 1, ranks, length=length)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16):
            for operator in VERIFICATIONS:
                yield _case(operator, 1 + rows % 3, ranks, rows=rows)
    yield _case("gdn_prefill", 9, length=200, padding=1)
    yield _case("gdn_prefill", 1, length=65536)
    # Decays near 1 and near 0: `decay` is added to A_log.
    for decay in (-12, 6):
        yield _case("gdn_decode", 3, decay=decay)
        yield _case("gdn_prefill", 2, length=300, decay=decay)
        for operator in VERIFICATIONS:
            yield _case(operator, 3, rows=4, decay=decay)
    small = {"key_heads": 2, "value_heads": 6, "key_head": 16, "value_head": 8}
    for width in (2, 3, 5):
        yield _case("gdn_decode", 4, width=width, **small)
        yield _case("gdn_prefill", 4, width=width, length=90, **small)
        for operator in VERIFICATIONS:
            yield _case(operator, 4, width=width, rows=3, **small)


def _benchmark() -> Iterator[Case]:
    yield from (_case("gdn_decode", sequences) for sequences in (1, 2, 4, 8, 16, 32))
    yield from (_case(operator, sequences, rows=8) for operator in VERIFICATIONS for sequences in (1, 4, 8))
    yield from (_case("gdn_prefill", 1, length=length) for length in (64, 512, 2048, 8192))
