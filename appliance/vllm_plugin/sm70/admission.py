"""Which SM70 routes a configuration may take, as pure functions of a small view of vLLM's configuration.

Each function has the name that a route's `admission` gives, and returns None where the route may be taken, else the
reason of the report. Nothing here knows the card, the kernels or the switches: `routes.decide` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.acceleration import report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEAD = 256
"""Width of an attention head that the kernels are made for (Qwen3.8-27B)."""

HEADS = (64, 128, 256)
"""Widths that attention's own kernels take."""

GROUP = 6
"""Query heads of a KV head."""

KEY_TILE = 64
"""Tokens of KV that a decode kernel reads at a time: a page below it has no tail to compact."""

PAGE_ALIGNMENT = 16
"""Tokens; vLLM 0.19.1 raises the pages of hybrid models to multiples of it."""

DRAFTS = 7
"""Drafted tokens of a verification step: DFlash2's block of 8 less the anchor."""

C32_ROWS = 32
"""Rows of the captured graph that the C32 contract asks for."""

MIN_BATCH = "VLLM_FLASH_V100_XQA_G6_DUAL_CTA_MIN_BATCH"
"""The variable with the smallest batch at which decode attention runs with two resident blocks."""

MIN_BATCH_DEFAULT = 16

KV_FORMATS = {"auto": "auto", "float16": "auto", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
"""What `--kv-cache-dtype` means on SM70, in the operators' words. `fp8` is E4M3; E5M2 is taken only when asked for."""


@dataclass(frozen=True)
class View:
    """What the admissions look at. Sizes are the whole model's, not a rank's; None where it has no such thing."""

    dtype: str = "float16"
    quantization: str | None = None
    """Of the weights: fp8, nvfp4, another method's own name; None for none."""
    kv_cache_dtype: str = "auto"
    block_size: int = 16
    """Tokens of a KV page."""
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    linear_attention: bool = False
    """Whether layers of the gated delta net are in the model."""
    method: str | None = None
    """Of speculation; `dflash` for vLLM's eagle3 with a DFlash draft."""
    num_speculative_tokens: int | None = None
    enforce_eager: bool = False
    cudagraph_mode: str = "NONE"
    captured: tuple[int, ...] = ()
    """Rows of the graphs that are captured; empty where none is."""
    enable_prefix_caching: bool = False
    switches: Mapping[str, object] = field(default_factory=dict)
    """`sm70` of --additional-config."""

    @property
    def kv_format(self) -> str:
        """The KV cache's format in the operators' words; vLLM's own where it is none of ours."""
        return KV_FORMATS.get(self.kv_cache_dtype, self.kv_cache_dtype)


def view_of(config: Any) -> View:  # noqa: ANN401 - vLLM's VllmConfig, whose types are not exported
    """Return the view of a completed `VllmConfig`."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    text, speculation = model.hf_text_config, config.speculative_config
    graphs = config.compilation_config.cudagraph_mode
    mode = graphs.name if graphs is not None else "NONE"
    eager = bool(model.enforce_eager)
    captured = () if eager or mode == "NONE" else tuple(config.compilation_config.cudagraph_capture_sizes or ())
    switches = (config.additional_config or {}).get("sm70") if isinstance(config.additional_config, dict) else None
    return View(
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=quantization_of(model.quantization, getattr(model.hf_config, "quantization_config", None)),
        kv_cache_dtype=str(cache.cache_dtype),
        block_size=int(cache.block_size or 0),
        max_num_batched_tokens=int(config.scheduler_config.max_num_batched_tokens),
        max_num_seqs=int(config.scheduler_config.max_num_seqs),
        tensor_parallel_size=int(parallel.tensor_parallel_size),
        pipeline_parallel_size=int(parallel.pipeline_parallel_size),
        hidden_size=getattr(text, "hidden_size", None),
        num_attention_heads=getattr(text, "num_attention_heads", None),
        num_key_value_heads=getattr(text, "num_key_value_heads", None),
        head_dim=getattr(text, "head_dim", None),
        linear_attention="linear_attention" in (getattr(text, "layer_types", None) or ()),
        method=None if speculation is None else method_of(speculation),
        num_speculative_tokens=None if speculation is None else speculation.num_speculative_tokens,
        enforce_eager=eager,
        cudagraph_mode=mode,
        captured=captured,
        enable_prefix_caching=bool(cache.enable_prefix_caching),
        switches=switches if isinstance(switches, dict) else {},
    )


def quantization_of(method: str | None, checkpoint: object) -> str | None:
    """Return fp8 or nvfp4 for what a checkpoint's `quantization_config` says; any other method by its own name."""
    if method is None:
        return None
    found = checkpoint if isinstance(checkpoint, dict) else {}
    groups = found.get("config_groups")
    formats = {group.get("format") for group in groups.values()} if isinstance(groups, dict) else set()
    formats.add(found.get("format"))
    if "fp4" in method or found.get("quant_algo") == "NVFP4" or any("nvfp4" in str(each) for each in formats):
        return "nvfp4"
    floats = {"float-quantized", "naive-quantized"} & formats
    return "fp8" if method == "fp8" or (method == "compressed-tensors" and floats) else method


def method_of(speculation: Any) -> str:  # noqa: ANN401 - vLLM's SpeculativeConfig
    """Return the method of speculation, `dflash` where eagle3 carries a DFlash draft."""
    draft = getattr(speculation, "draft_model_config", None)
    names = getattr(getattr(draft, "hf_config", None), "architectures", None) or ()
    return "dflash" if any("DFlash" in str(name) for name in names) else str(speculation.method)


def attention_backend(view: View) -> str | None:
    """Attention through our backend: FP16, and a KV format that it knows."""
    if view.dtype != "float16":
        return report.contract_mismatch("dtype", view.dtype, "float16")
    if view.kv_format not in ("auto", "fp8_e4m3", "fp8_e5m2"):
        return report.KV_DTYPE
    return None if view.head_dim in HEADS else report.HEAD_DIM


def _grouped(view: View, *formats: str) -> str | None:
    """Decode attention that takes the query heads of a KV head together, over these KV formats."""
    if refused := attention_backend(view):
        return refused
    if view.kv_format not in formats:
        return report.KV_DTYPE
    if view.head_dim != HEAD:
        return report.HEAD_DIM
    heads, kv_heads = view.num_attention_heads, view.num_key_value_heads
    if heads is None or kv_heads is None or heads != GROUP * kv_heads:
        return report.contract_mismatch("num_attention_heads", heads, GROUP * (kv_heads or 0))
    return None


def fp16_grouped_fp32(view: View) -> str | None:
    """Grouped decode attention over FP16 KV."""
    return _grouped(view, "auto")


def e4m3_grouped_fp32(view: View) -> str | None:
    """Grouped decode attention over E4M3 KV."""
    return _grouped(view, "fp8_e4m3")


def long_context(view: View) -> str | None:
    """Decode attention split over the context, over FP16 or E4M3 KV."""
    return _grouped(view, "auto", "fp8_e4m3")


def scalar_tail(view: View) -> str | None:
    """The compact tail of the last page, over E4M3 KV and pages of whole key tiles."""
    if refused := _grouped(view, "fp8_e4m3"):
        return refused
    if view.block_size < KEY_TILE:
        return report.PAGE_SIZE
    return report.PAGE_ALIGNMENT if view.block_size % PAGE_ALIGNMENT else None


def dual_attention_b16(view: View) -> str | None:
    """Two resident blocks of decode attention: exactly the C32 contract."""
    return c32(view)


def c32(view: View) -> str | None:
    """The contract under which the C32 defaults hold. The card's capability is `routes.decide`'s part of it.

    FP16, FP8 weights, four tensor parallel ranks in one stage, no speculation, FP16 KV, the shapes of Qwen3.8-27B, and
    a graph of 32 rows that is captured in fact.
    """
    fields: tuple[tuple[str, object, object], ...] = (
        ("dtype", view.dtype, "float16"),
        ("quantization", view.quantization, "fp8"),
        ("tensor_parallel_size", view.tensor_parallel_size, 4),
        ("pipeline_parallel_size", view.pipeline_parallel_size, 1),
        ("method", view.method, None),
    )
    if refused := _contract(*fields):
        return refused
    if view.kv_format != "auto":
        return report.KV_DTYPE
    if refused := _qwen38(view):
        return refused
    if C32_ROWS not in view.captured:
        return report.contract_mismatch("captured", max(view.captured, default=0), C32_ROWS)
    return None


def _qwen38(view: View) -> str | None:
    return _contract(
        ("hidden_size", view.hidden_size, 5120),
        ("num_attention_heads", view.num_attention_heads, 24),
        ("num_key_value_heads", view.num_key_value_heads, 4),
        ("head_dim", view.head_dim, HEAD),
    )


def _contract(*fields: tuple[str, object, object]) -> str | None:
    for name, actual, expected in fields:
        if actual != expected:
            return report.contract_mismatch(name, actual, expected)
    return None


def mixed_batch_resident_decode(view: View) -> str | None:
    """Decode rows of a mixed batch through decode attention: whatever our backend serves."""
    return attention_backend(view)


def e4m3_prefix_bridge(view: View) -> str | None:
    """The expansion of an E4M3 prefix: E4M3 KV."""
    return attention_backend(view) or (None if view.kv_format == "fp8_e4m3" else report.KV_DTYPE)


def q4096_prefill(view: View) -> str | None:
    """Prefill attention for 4096 queries: a budget of as many."""
    return _long_prefill(view, 4096)


def q8000_prefill(view: View) -> str | None:
    """Prefill attention for 8000 and 8192 queries: a budget of at least the smaller."""
    return _long_prefill(view, 8000)


def _long_prefill(view: View, queries: int) -> str | None:
    if refused := attention_backend(view):
        return refused
    if view.head_dim != HEAD:
        return report.HEAD_DIM
    return report.budget_below(queries) if view.max_num_batched_tokens < queries else None


def fp8_dense(view: View) -> str | None:
    """FP8 linear layers; a model whose weights are of another kind has none."""
    return _floating(view) if view.quantization == "fp8" else report.NOT_APPLICABLE


def nvfp4_dense(view: View) -> str | None:
    """NVFP4 linear layers; a model whose weights are of another kind has none."""
    return _floating(view) if view.quantization == "nvfp4" else report.NOT_APPLICABLE


def _floating(view: View) -> str | None:
    return _contract(("dtype", view.dtype, "float16"))


def gemma_rms_norm(view: View) -> str | None:
    """The fused add and norm: FP16."""
    return _floating(view)


def qk_norm_rope(view: View) -> str | None:
    """Norms and rotary of query and key: FP16 and heads of 256."""
    return _floating(view) or (None if view.head_dim == HEAD else report.HEAD_DIM)


def silu_mul(view: View) -> str | None:
    """SiLU·mul and the output gate: FP16."""
    return _floating(view)


def linear_attention(view: View) -> str | None:
    """Layers of the gated delta net; a model without them has nothing to speed up."""
    return _floating(view) if view.linear_attention else report.NOT_APPLICABLE


def all_reduce(view: View) -> str | None:
    """Our all-reduce: several ranks of a tensor parallel group, and FP16 messages."""
    return report.NOT_APPLICABLE if view.tensor_parallel_size == 1 else _floating(view)


def dflash2_draft(view: View) -> str | None:
    """The draft: speculation by DFlash."""
    return None if view.method == "dflash" else report.unequal("method", view.method, "dflash")


def dflash2_verifier(view: View) -> str | None:
    """The verifier: DFlash with seven drafted tokens, on the model and the ranks that it was proven on."""
    if refused := dflash2_draft(view):
        return refused
    if view.num_speculative_tokens != DRAFTS:
        return report.unequal("num_speculative_tokens", view.num_speculative_tokens, DRAFTS)
    ranks = (
        ("tensor_parallel_size", view.tensor_parallel_size, 4),
        ("pipeline_parallel_size", view.pipeline_parallel_size, 1),
    )
    return _contract(("dtype", view.dtype, "float16"), *ranks) or _qwen38(view)


def partial_prefix_cache(view: View) -> str | None:
    """Hits inside a page: prefix caching is on."""
    return None if view.enable_prefix_caching else report.unequal("enable_prefix_caching", actual=False, expected=True)


def top_k_top_p(_: View) -> str | None:
    """The sampler's filter: any configuration."""
    return None


def compile_graph(view: View) -> str | None:
    """Compilation with CUDA graphs: not eager, and some graph is captured."""
    if view.enforce_eager:
        return report.unequal("enforce_eager", actual=True, expected=False)
    return None if view.captured else report.unequal("cudagraph_mode", view.cudagraph_mode, "FULL_AND_PIECEWISE")


def compile_cache(_: View) -> str | None:
    """Code kept between starts: decided by the cache's own record, not by vLLM's configuration."""
    return None


ADMISSIONS: dict[str, Callable[[View], str | None]] = {
    function.__name__: function
    for function in (
        attention_backend,
        fp16_grouped_fp32,
        e4m3_grouped_fp32,
        long_context,
        scalar_tail,
        dual_attention_b16,
        mixed_batch_resident_decode,
        e4m3_prefix_bridge,
        q4096_prefill,
        q8000_prefill,
        fp8_dense,
        nvfp4_dense,
        gemma_rms_norm,
        qk_norm_rope,
        silu_mul,
        linear_attention,
        all_reduce,
        dflash2_draft,
        dflash2_verifier,
        partial_prefix_cache,
        top_k_top_p,
        compile_graph,
        compile_cache,
    )
}
"""By the names that the table of routes uses."""


@dataclass(frozen=True)
class Default:
    """A variable's final value with where it comes from: `default`, or `environment NAME`, which always wins."""

    value: str
    source: str


def c32_defaults(view: View, capability: tuple[int, int] | None, environment: Mapping[str, str]) -> dict[str, Default]:
    """Return the variables of the C32 contract with their final values; none where neither it nor a person sets any.

    Raises ValueError, one line, for a value that is no positive whole number.
    """
    given = min_batch(environment)
    if given is not None:
        return {MIN_BATCH: Default(str(given), f"environment {MIN_BATCH}")}
    if capability != (7, 0) or c32(view) is not None:
        return {}
    return {MIN_BATCH: Default(str(MIN_BATCH_DEFAULT), "default")}


def min_batch(environment: Mapping[str, str]) -> int | None:
    """Return what a person set as the smallest batch of two resident blocks, None where nobody did.

    Raises ValueError, one line.
    """
    given = environment.get(MIN_BATCH)
    if given is None:
        return None
    if not given.strip().isdecimal() or int(given) < 1:
        raise ValueError(f'environment {MIN_BATCH} is "{given}"; wanted is a number of sequences, 1 or more')
    return int(given)
