"""The shapes on which operators are proven, self-tested and timed: one generator for all three. Pure data.

A family adds a function `..._cases(scope)` here and its name to `FAMILIES`. Sizes come from Qwen3.8-27B's
configuration, split over 1, 2 and 4 ranks, and from the edges of the kernels' tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sm70_kernels.heuristics.dense import EXPAND_FROM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Scope = Literal["selftest", "suite", "benchmark"]
"""`selftest`: a handful, at each engine's load. `suite`: everything, on any GPU. `benchmark`: what a step runs."""

# Qwen/Qwen3.8-27B, config.json, text_config.
HIDDEN = 5120
INTERMEDIATE = 17408
QUERY_HEADS, KEY_HEADS, HEAD, ROTARY = 24, 4, 256, 64
MROPE_SECTIONS = (11, 11, 10)
GDN_HEADS, GDN_HEAD = 48, 128
GDN_COLUMNS = 16384
"""Query, key, value and z of a gated delta net."""
EPS = 1e-6

RANKS = (1, 2, 4)
"""Sizes of a tensor-parallel group for which shapes are made."""

DECODE_TOKENS = (1, 2, 7, 8, 16, 31, 32)
PREFILL_TOKENS = (33, 257, 2048)
BENCHMARK_TOKENS = (1, 8, 32, 2048, 8192)


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of one operator. `sizes` are the arguments of that operator's input maker."""

    operator: str
    sizes: Mapping[str, int]

    @property
    def name(self) -> str:
        """The case in one word, such as `rms_norm[hidden=5120,tokens=8]`."""
        return f"{self.operator}[{','.join(f'{key}={value}' for key, value in sorted(self.sizes.items()))}]"


def tokens_of(scope: Scope) -> tuple[int, ...]:
    """Return the token counts of a scope."""
    every = {"selftest": (1, 8), "suite": DECODE_TOKENS + PREFILL_TOKENS, "benchmark": BENCHMARK_TOKENS}
    return every[scope]


def rms_norm_cases(scope: Scope) -> Iterator[Case]:
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


def head_cases(scope: Scope) -> Iterator[Case]:
    """Yield the gated norm, the norm with rotary embedding, and the output gate, by the heads of a rank."""
    for ranks in RANKS if scope == "suite" else (4,):
        heads = {"q_heads": QUERY_HEADS // ranks, "k_heads": KEY_HEADS // ranks}
        for tokens in tokens_of(scope) if ranks == 4 else (1, 9):
            yield Case("gated_rms_norm", {"tokens": tokens, "heads": GDN_HEADS // ranks, "head": GDN_HEAD})
            yield Case("qk_norm_mrope", {"tokens": tokens, **heads, "head": HEAD, "rotary": ROTARY, "axes": 3})
            yield Case("sigmoid_gate", {"tokens": tokens, "heads": QUERY_HEADS // ranks, "head": HEAD})
    if scope != "suite":
        return
    for head in (64, 128, 256):
        yield Case("gated_rms_norm", {"tokens": 3, "heads": 5, "head": head})
    for head, rotary in ((128, 128), (128, 64), (256, 64)):
        for axes in (1, 3):
            sizes = {"tokens": 3, "q_heads": 5, "k_heads": 3, "head": head, "rotary": rotary, "axes": axes}
            yield Case("qk_norm_mrope", sizes)
    for head in (1, 100, 129):
        yield Case("sigmoid_gate", {"tokens": 3, "heads": 3, "head": head})
    yield Case("gated_rms_norm", {"tokens": 0, "heads": 12, "head": GDN_HEAD})
    yield Case("sigmoid_gate", {"tokens": 0, "heads": 6, "head": HEAD})
    none = {"tokens": 0, "q_heads": 6, "k_heads": 1, "head": HEAD, "rotary": ROTARY, "axes": 3}
    yield Case("qk_norm_mrope", none)


def silu_and_mul_cases(scope: Scope) -> Iterator[Case]:
    """Yield the gated MLP's rows of a rank, and in the suite rows that no vector divides."""
    for ranks in RANKS if scope == "suite" else (4,):
        for tokens in tokens_of(scope) if ranks == 4 else (1, 9):
            yield Case("silu_and_mul", {"tokens": tokens, "width": INTERMEDIATE // ranks})
    if scope == "suite":
        for width in (1, 7, 8, 2047, 2048, 2056):
            yield Case("silu_and_mul", {"tokens": 3, "width": width})
        yield Case("silu_and_mul", {"tokens": 0, "width": 4352})


def dense_layers(ranks: int) -> dict[str, tuple[int, int, bool]]:
    """Return the dense layers of a rank: columns of the result, K, and whether they are a gate and an up."""
    mixed = QUERY_HEADS * HEAD // ranks
    return {
        "gate_up": (INTERMEDIATE // ranks, HIDDEN, True),
        "down": (HIDDEN, INTERMEDIATE // ranks, False),
        "out": (HIDDEN, mixed, False),
        "qkv": ((2 * QUERY_HEADS + 2 * KEY_HEADS) * HEAD // ranks, HIDDEN, False),
        "qkvz": (GDN_COLUMNS // ranks, HIDDEN, False),
    }


DENSE_FORMS = {"plain": (2600, 640, False), "wide": (5200, 640, False), "gated": (2600, 640, True)}
"""As `dense_layers`: short ones, of the forms of the real layers that have more than one candidate."""


def dense_cases(scope: Scope) -> Iterator[Case]:
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
    for ranks in RANKS:
        for layer in dense_layers(ranks).values():
            yield from (_dense(rows, *layer) for rows in tiles_of_rows)
    for name in ("gate_up", "out"):
        yield from (_dense(rows, *dense_layers(4)[name]) for rows in (2, 7, 9, 31, 33, 65, 200, 1000, EXPAND_FROM))
    # GDN's b and a beside query, key, value and z at four ranks, and the LM head.
    for rows in tiles_of_rows:
        yield _dense(rows, (GDN_COLUMNS + 2 * GDN_HEADS) // 4, HIDDEN, False)
        yield _dense(rows, 62080, HIDDEN, False)


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


def hardware_cases(_: Scope) -> Iterator[Case]:
    """Yield the questions to the card itself."""
    yield Case("mma_lanes", {"seed": 1})
    yield Case("dequant_codes", {})
    for named in (1, 0):
        yield Case("barrier_control", {"named": named, "rounds": 7})


FAMILIES = (hardware_cases, rms_norm_cases, head_cases, silu_and_mul_cases, dense_cases)


def cases(operator: str, scope: Scope) -> list[Case]:
    """Return the cases of one operator."""
    return [case for family in FAMILIES for case in family(scope) if case.operator == operator]
