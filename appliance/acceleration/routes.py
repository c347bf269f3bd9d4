"""The one table of SM70 routes: what each replaces, the switch that turns it off, and whether it is on by default.

Names are part of the interface: profiles expect them, reports and metrics carry them, switches are called by them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Route:
    """One fast path. `switch` is its key under `sm70` in --additional-config, unless it starts with `--` (an
    argument of vLLM) or `VLLM_` (a variable of vLLM). `optional` routes may be expected by no profile.
    """

    name: str
    title: str
    replaces: str
    switch: str
    default: bool = True
    optional: bool = False


def _route(
    name: str, title: str, replaces: str, *, switch: str = "", default: bool = True, optional: bool = False
) -> Route:
    return Route(name, title, replaces, switch or name, default, optional)


_TABLE = (
    _route("attention_backend", "attention kernels for SM70", "vLLM's TRITON_ATTN, which reaches no tensor core"),
    _route(
        "fp16_grouped_fp32",
        "decode attention over FP16 KV: the query heads of a KV head together, float32 state",
        "decode attention of one query head at a time",
    ),
    _route(
        "e4m3_grouped_fp32",
        "decode attention over E4M3 KV: the query heads of a KV head together, float32 state",
        "decode attention of one query head at a time",
    ),
    _route(
        "long_context",
        "decode attention split over the context in partitions that fill whole waves",
        "one partition size for every context length",
    ),
    _route(
        "scalar_tail",
        "the last, partly filled KV page read in a compact tail",
        "a whole tile of the last KV page, mostly masked",
    ),
    _route(
        "dual_attention_b16",
        "decode attention with six warps and two resident blocks per SM, at batch 16 and above",
        "decode attention with eight warps and one resident block",
    ),
    _route(
        "mixed_batch_resident_decode",
        "decode rows of a mixed batch through paged decode attention",
        "decode rows carried through the prefill kernel, stalled by every prompt that arrives",
    ),
    _route(
        "e4m3_prefix_bridge",
        "one expansion of the E4M3 prefix into a shared FP16 workspace before prefill attention",
        "the same conversion in every block of queries",
    ),
    _route("q4096_prefill", "long-prefill attention specialised for 4096 queries", "the general prefill attention"),
    _route(
        "q8000_prefill", "long-prefill attention specialised for 8000 and 8192 queries", "the general prefill attention"
    ),
    _route("fp8_dense", "FP8 linear layers up to 32 rows, weights repacked once", "a linear method that SM70 refuses"),
    _route(
        "fp8_prefill",
        "FP8 linear layers of a prefill: expansion into a shared workspace and cuBLAS",
        "a linear method that SM70 refuses",
    ),
    _route(
        "nvfp4_dense", "NVFP4 linear layers up to 32 rows, weights repacked once", "a linear method that SM70 refuses"
    ),
    _route(
        "nvfp4_prefill",
        "NVFP4 linear layers of a prefill: expansion into a shared workspace and cuBLAS",
        "a linear method that SM70 refuses",
    ),
    _route("gemma_rms_norm", "fused add and (1+w) RMSNorm", "vLLM's norm compiled by inductor"),
    _route("gated_rms_norm", "RMSNorm with SiLU gate at the output of linear attention", "vLLM's Triton norm"),
    _route(
        "qk_norm_rope", "per-head q and k norm fused with partial interleaved mRoPE", "two norms and a rotary kernel"
    ),
    _route("silu_mul", "SiLU·mul, and the sigmoid gate of full attention", "vLLM's activation kernels"),
    _route("gdn_decode", "gated delta net: one recurrent step", "vLLM's Triton kernel"),
    _route("gdn_prefill", "gated delta net: chunks of 64 tokens on tensor cores", "vLLM's Triton kernels"),
    _route(
        "all_reduce",
        "all-reduce of small messages pushed to the peers, inside CUDA graphs",
        "vLLM's custom all-reduce, or NCCL",
    ),
    _route("dflash2_draft", "the DFlash2 draft and its candidate selector", "nothing: vLLM 0.19.1 knows no DFlash"),
    _route(
        "dflash2_verifier",
        "verification of eight rows per request with fused metadata, norms and rejection",
        "verification through the general prefill path",
    ),
    _route(
        "partial_prefix_cache",
        "prefix-cache hits inside a KV page, at message ends rounded down to 64 tokens",
        "hits at whole pages only",
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
