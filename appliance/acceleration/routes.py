"""The one table of SM70 routes: what each replaces, its operators, its admission, its switch and its default.

Names are part of the interface: profiles expect them, reports and metrics carry them, switches are called by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

REFERENCE = "reference"
"""As a fall-back: the route's own operators in plain torch. vLLM has nothing for the layer."""

UPSTREAM = "upstream"
"""As a fall-back: what vLLM 0.19.1 does by itself."""

NOT_BUILT = frozenset(
    {
        "all_reduce_push",
        "attention_decode_tail",
        "attention_prefill_q4096",
        "attention_prefill_q8000",
        "dflash2_draft",
        "dflash2_rejection",
        "dense_w4a16",
        "dense_w4a16_silu_mul",
        "kv_cache_expand",
        "prefix_tail_copy",
    }
)
"""What routes name and this build cannot serve: no module of sm70_kernels defines it, or no GPU has run its kernel.

Whoever adds or proves one takes its name out."""


@dataclass(frozen=True)
class Route:
    """One fast path. `switch` is its key under `sm70` in --additional-config, unless it starts with `--` (an
    argument of vLLM) or `VLLM_` (a variable of vLLM). `optional` routes may be expected by no profile.
    """

    name: str
    title: str
    replaces: str
    operators: tuple[str, ...]
    """What it is made of: operators `torch.ops.sm70.NAME`, or kernels of sm70_kernels' registry inside one."""
    admission: str
    """The function of `appliance.vllm_plugin.sm70.admission` that says whether a configuration may take it."""
    fallback: str
    """What serves where it is off: REFERENCE, UPSTREAM, or the name of another route."""
    switch: str
    default: bool = True
    optional: bool = False


def _route(
    name: str,
    title: str,
    replaces: str,
    operators: str = "",
    *,
    admission: str = "",
    fallback: str = UPSTREAM,
    switch: str = "",
    default: bool = True,
    optional: bool = False,
) -> Route:
    """Return a row. `operators` are separated by blanks; a route's admission has its name unless told otherwise."""
    return Route(
        name, title, replaces, tuple(operators.split()), admission or name, fallback, switch or name, default, optional
    )


_TABLE = (
    _route(
        "attention_backend",
        "attention kernels for SM70",
        "vLLM's TRITON_ATTN, which reaches no tensor core",
        "kv_cache_write attention_decode attention_prefill",
        fallback=REFERENCE,
    ),
    _route(
        "fp16_grouped_fp32",
        "decode attention over FP16 KV: the query heads of a KV head together, float32 state",
        "decode attention of one query head at a time",
        "attention_decode",
        fallback="attention_backend",
    ),
    _route(
        "e4m3_grouped_fp32",
        "decode attention over E4M3 KV: the query heads of a KV head together, float32 state",
        "decode attention of one query head at a time",
        "attention_decode",
        fallback="attention_backend",
    ),
    _route(
        "long_context",
        "decode attention split over the context in partitions that fill whole waves",
        "one thread block for the whole context of a KV head",
        "attention_decode attention_reduce",
        fallback="attention_backend",
    ),
    _route(
        "scalar_tail",
        "the last, partly filled KV page read in a compact tail",
        "a whole tile of the last KV page, mostly masked",
        "attention_decode_tail",
        fallback="attention_backend",
    ),
    _route(
        "dual_attention_b16",
        "decode attention with six warps and two resident blocks per SM, at batch 16 and above",
        "decode attention with eight warps and one resident block",
        "attention_decode",
        fallback="attention_backend",
    ),
    _route(
        "mixed_batch_resident_decode",
        "decode rows of a mixed batch through paged decode attention",
        "decode rows carried through the prefill kernel, stalled by every prompt that arrives",
        "attention_decode",
        fallback="attention_backend",
    ),
    _route(
        "e4m3_prefix_bridge",
        "one expansion of the E4M3 prefix into a shared FP16 workspace before prefill attention",
        "the same conversion in every block of queries",
        "kv_cache_expand",
        fallback="attention_backend",
    ),
    _route(
        "q4096_prefill",
        "long-prefill attention specialised for 4096 queries",
        "the general prefill attention",
        "attention_prefill_q4096",
        fallback="attention_backend",
    ),
    _route(
        "q8000_prefill",
        "long-prefill attention specialised for 8000 and 8192 queries",
        "the general prefill attention",
        "attention_prefill_q8000",
        fallback="attention_backend",
    ),
    _route(
        "fp8_dense",
        "FP8 linear layers up to 32 rows, weights repacked once",
        "a linear method that SM70 refuses",
        "dense_w8a16 dense_w8a16_silu_mul",
        fallback=REFERENCE,
    ),
    _route(
        "fp8_prefill",
        "FP8 linear layers of a prefill: expansion into a shared workspace and cuBLAS",
        "a linear method that SM70 refuses",
        "dense_w8a16 dense_w8a16_silu_mul dense_expand",
        admission="fp8_dense",
        fallback="fp8_dense",
    ),
    _route(
        "nvfp4_dense",
        "NVFP4 linear layers up to 32 rows, weights repacked once",
        "a linear method that SM70 refuses",
        "dense_w4a16 dense_w4a16_silu_mul",
        fallback=REFERENCE,
    ),
    _route(
        "nvfp4_prefill",
        "NVFP4 linear layers of a prefill: expansion into a shared workspace and cuBLAS",
        "a linear method that SM70 refuses",
        "dense_w4a16 dense_w4a16_silu_mul",
        admission="nvfp4_dense",
        fallback="nvfp4_dense",
    ),
    _route(
        "gemma_rms_norm",
        "fused add and (1+w) RMSNorm",
        "vLLM's norm compiled by inductor",
        "rms_norm add_rms_norm",
    ),
    _route(
        "gated_rms_norm",
        "RMSNorm with SiLU gate at the output of linear attention",
        "vLLM's Triton norm",
        "gated_rms_norm",
        admission="linear_attention",
    ),
    _route(
        "qk_norm_rope",
        "per-head q and k norm fused with partial interleaved mRoPE",
        "two norms and a rotary kernel",
        "qk_norm_mrope",
    ),
    _route(
        "silu_mul",
        "SiLU·mul, and the sigmoid gate of full attention",
        "vLLM's activation kernels",
        "silu_and_mul sigmoid_gate",
    ),
    _route(
        "gdn_decode",
        "gated delta net: one recurrent step",
        "vLLM's Triton kernel",
        "gdn_decode",
        admission="linear_attention",
        fallback=REFERENCE,
    ),
    _route(
        "gdn_prefill",
        "gated delta net: chunks of 64 tokens on tensor cores",
        "vLLM's Triton kernels",
        "gdn_prefill",
        admission="linear_attention",
        fallback=REFERENCE,
    ),
    _route(
        "all_reduce",
        "all-reduce of small messages pushed to the peers, inside CUDA graphs",
        "vLLM's custom all-reduce, or NCCL",
        "all_reduce_push",
    ),
    _route(
        "dflash2_draft",
        "the DFlash2 draft and its candidate selector",
        "nothing: vLLM 0.19.1 knows no DFlash",
        "dflash2_draft",
        fallback=REFERENCE,
    ),
    _route(
        "dflash2_verifier",
        "verification of eight rows per request with fused metadata, norms and rejection",
        "verification through the general prefill path",
        "gdn_verify dflash2_rejection",
    ),
    _route(
        "partial_prefix_cache",
        "prefix-cache hits inside a KV page, at message ends rounded down to 64 tokens",
        "hits at whole pages only",
        "prefix_tail_copy",
    ),
    _route(
        "top_k_top_p",
        "top-k by selection, top-p among what it leaves; a sort where no small k is given",
        "vLLM's Triton kernel for both, whose registers spill on SM70",
        optional=True,
    ),
    _route(
        "compile_graph",
        "torch.compile and CUDA graphs over every captured batch size",
        "eager execution, launch-bound on SM70",
        switch="--enforce-eager",
    ),
    _route(
        "compile_cache",
        "compiled code kept between starts",
        "compilation at every start",
        switch="VLLM_DISABLE_COMPILE_CACHE",
    ),
)

ROUTES: dict[str, Route] = {route.name: route for route in _TABLE}
"""Every route by its name, in the order in which reports list them."""

OPERATORS = tuple(dict.fromkeys(name for route in ROUTES.values() for name in route.operators))
"""Every operator that a route names, once, in the table's order."""

OWNER: dict[str, str] = {}
"""The first route of the table that names an operator: its switch and admission decide about the operator's kernel."""
for _each in _TABLE:
    for _operator in _each.operators:
        OWNER.setdefault(_operator, _each.name)


def missing_operators(route: Route) -> tuple[str, ...]:
    """Return the operators of a route that this build does not have, in their order."""
    return tuple(name for name in route.operators if name in NOT_BUILT)


def not_built(expected: Iterable[str]) -> tuple[str, ...]:
    """Return those of the expected routes that stay off on every card, since an operator of theirs is not built."""
    return tuple(name for name in expected if missing_operators(ROUTES[name]))


def unserved(expected: Iterable[str]) -> tuple[str, ...]:
    """Return those of the expected routes whose layers this build cannot compute at all.

    An operator of theirs is not built, and neither vLLM nor another route serves in their place. A route that is only
    slower without its kernel is not among them: its profile starts, and the report names it with the reason.
    """
    return tuple(name for name in expected if not _serves(ROUTES[name]))


def _serves(route: Route) -> bool:
    if not missing_operators(route) or route.fallback == UPSTREAM:
        return True
    return route.fallback != REFERENCE and _serves(ROUTES[route.fallback])
