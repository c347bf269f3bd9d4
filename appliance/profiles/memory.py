"""The memory plan of one rank: what a profile takes of a card, what is left for KV, and whether that is enough.

Formula: the memory share, the pages and blocks (`appliance.profiles.kv`), the prefix bridge, capacity and concurrency.
Calibrated or published, as each figure in the profile says: weights, draft weights, workspaces, activations, graphs.

vLLM sizes KV as `share × total - weights - everything allocated while profiling`. CUDA context, captured graphs and
allocator slack come on top and must find room in what the share leaves over.

Capacity is told as `max_concurrency × max_model_len`, which is what a request of full length can use. The engine's log
line "GPU KV cache size" of 0.19.1 divides all blocks by the number of groups instead and is smaller on a hybrid model;
its line "Maximum concurrency" is the same as here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from appliance.errors import ConfigurationError
from appliance.profiles.kv import KvLayout, MambaMode, layout, token_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from appliance.profiles.schema import Figure, Profile

GIB = 2**30
_UNITS = {"GiB": GIB, "MiB": 2**20, "KiB": 2**10, "KiB/token": 2**10, "B": 1}
_DTYPE_BYTES = {"float16": 2, "half": 2, "bfloat16": 2, "float32": 4, "float": 4, "auto": 2}
_DRIVER_RESERVE = 258 * 2**20
"""Newer drivers report what is on the board (16384, 32768 MiB); CUDA gets 16160 and 32510 MiB of it."""


@dataclass(frozen=True)
class Part:
    """One thing that takes memory, in bytes, and where its size comes from."""

    name: str
    bytes: int
    provenance: str
    source: str


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of one rank; all sizes in bytes. `device` is `gpu` or `host`.

    `parts` lie inside the memory share, `outside` beside it. `blocks` of `layout.block_bytes` fit into `kv_bytes`;
    `blocks_per_request` are those of a request of `max_model_len` tokens. `shortfalls` say with the numbers what is
    missing, and are empty where the plan fits.
    """

    device: str
    total_bytes: int
    share: float
    share_bytes: int
    parts: tuple[Part, ...]
    outside: tuple[Part, ...]
    kv_bytes: int
    layout: KvLayout
    max_model_len: int
    max_num_seqs: int
    blocks: int
    blocks_per_request: int
    kv_tokens: int
    max_concurrency: float
    shortfalls: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the profile's guaranteed requests can be resident at once."""
        return not self.shortfalls

    def explain(self) -> list[str]:
        """Return the plan in sentences for a person."""
        taken = sum(part.bytes for part in self.parts)
        if self.device == "gpu":
            lines = [
                f"A rank needs {_sum(self.parts)} = {_gib(taken)}; {self.share:g} of the card's "
                f"{_gib(self.total_bytes)} is {_gib(self.share_bytes)}, which leaves {_gib(self.kv_bytes)} for KV.",
                f"Outside the share: {_sum(self.outside)}, of {_gib(self.total_bytes - self.share_bytes)}.",
            ]
        else:
            everything = [*self.parts, Part("KV", self.kv_bytes, "", ""), *self.outside]
            whole = _gib(sum(part.bytes for part in everything))
            lines = [f"The engine needs {_sum(everything)} = {whole}; the host has {_gib(self.total_bytes)}."]
        if self.blocks:
            lines.append(
                f"KV pages of {self.layout.page_tokens:,} tokens: {self.kv_tokens:,} tokens in all, "
                f"{self.max_concurrency:.2f} requests of {self.max_model_len:,} tokens at once."
            )
        return [*lines, *(f"Does not fit: {shortfall}." for shortfall in self.shortfalls)]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON, with `fits` and the sentences of `explain`."""
        return {
            **asdict(self),
            "block_bytes": self.layout.block_bytes,
            "fits": self.fits,
            "explanation": self.explain(),
        }


def plan_memory(
    profile: Profile,
    memory_bytes: int,
    *,
    tensor_parallel_size: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    num_speculative_tokens: int | None = None,
    checkpoint_bytes: int | None = None,
) -> MemoryPlan:
    """Return the memory plan of one rank. Pure.

    `memory_bytes` is the smallest chosen card's memory as the driver reports it, or for a portable profile the
    memory that the host grants. `arguments` and `environment` are what stands over the profile's own, by the same
    names. `num_speculative_tokens` 0 takes the draft away. `checkpoint_bytes` scales the profile's weights to another
    checkpoint of the same kind. Raises ConfigurationError for an argument that is not a number, or ranks that do not
    divide the heads.
    """
    needs = profile.memory
    merged = {**profile.arguments, **(arguments or {})}
    own_size = _whole(profile.arguments, "tensor_parallel_size", 1)
    ranks = tensor_parallel_size or _whole(merged, "tensor_parallel_size", own_size)
    heads = needs.geometry.kv_heads
    if heads % ranks and ranks % heads:
        raise ConfigurationError(f"tensor_parallel_size is {ranks}; wanted a divisor of the model's {heads} KV heads")
    speculative = profile.draft.num_speculative_tokens if profile.draft else 0
    if num_speculative_tokens is not None:
        speculative = num_speculative_tokens
    model_len = _whole(merged, "max_model_len", _whole(profile.arguments, "max_model_len", 0))
    budget = _whole(merged, "max_num_batched_tokens", 2048)
    sequences = _whole(merged, "max_num_seqs", needs.guarantee_requests)
    kv_element = _kv_element_bytes(merged)
    pages = layout(
        needs.geometry,
        needs.draft if speculative else None,
        tensor_parallel_size=ranks,
        kv_bytes=kv_element,
        ssm_bytes=_ssm_bytes(merged, needs.geometry.ssm_state_bytes),
        num_speculative_tokens=speculative,
        block_size=_whole(merged, "block_size", 0) or None,
        mamba_mode=_mamba_mode(merged),
        budget=budget,
        max_model_len=model_len,
    )
    parts = [_weights(profile, own_size, ranks, checkpoint_bytes)]
    if speculative and needs.draft_weights:
        parts.append(_part("draft weights", needs.draft_weights, own_size / ranks))
    parts.append(_part("workspaces", needs.workspaces))
    if needs.activations:
        parts.append(_part("activations", needs.activations, budget))
    if needs.prefix_bridge and kv_element == 1:
        size = model_len * token_bytes(heads, needs.geometry.head_dim, 2, ranks)
        parts.append(Part("prefix bridge", size, "derived", "K and V of one layer in FP16, max_model_len tokens"))
    outside = (_part("graphs and context", needs.graphs), _part("headroom", needs.headroom))
    if profile.needs.gpus:
        device, total, share = "gpu", cuda_total(memory_bytes), _share(merged)
        share_bytes = int(total * share)
        left = share_bytes - sum(part.bytes for part in parts)
        kv_bytes = _whole(merged, "kv_cache_memory_bytes", 0) or max(0, left)
    else:
        device, total, share, share_bytes = "host", memory_bytes, 1.0, memory_bytes
        kv_bytes = _host_kv_bytes({**profile.environment, **(environment or {})}, total)
    blocks = kv_bytes // pages.block_bytes
    per_request = pages.blocks(model_len)
    guarantee = min(needs.guarantee_requests, sequences), min(needs.guarantee_tokens, model_len)
    return MemoryPlan(
        device=device,
        total_bytes=total,
        share=share,
        share_bytes=share_bytes,
        parts=tuple(parts),
        outside=outside,
        kv_bytes=kv_bytes,
        layout=pages,
        max_model_len=model_len,
        max_num_seqs=sequences,
        blocks=blocks,
        blocks_per_request=per_request,
        kv_tokens=blocks * model_len // per_request,
        max_concurrency=blocks / per_request,
        shortfalls=_too_big(share_bytes, parts)
        or (
            *_room_shortfall(device, total, share_bytes, parts, outside, kv_bytes),
            *_kv_shortfall(pages, kv_bytes, guarantee, (1, model_len)),
            *_page_shortfall(pages, _mamba_mode(merged), budget),
        ),
    )


def cuda_total(memory_bytes: int) -> int:
    """Return what CUDA gets of a card whose driver reports `memory_bytes`: whole GiB include the driver's reserve."""
    return memory_bytes - _DRIVER_RESERVE if memory_bytes % GIB == 0 else memory_bytes


def _too_big(share_bytes: int, parts: Sequence[Part]) -> tuple[str, ...]:
    taken = sum(part.bytes for part in parts)
    if taken <= share_bytes:
        return ()
    return (f"{_sum(parts)} = {_gib(taken)} besides KV is more than the {_gib(share_bytes)} that may be used",)


def _room_shortfall(
    device: str, total: int, share_bytes: int, parts: Sequence[Part], outside: Sequence[Part], kv_bytes: int
) -> Iterator[str]:
    taken, beside = sum(part.bytes for part in parts), sum(part.bytes for part in outside)
    if device == "host":
        if taken + kv_bytes + beside > total:
            everything = [*parts, Part("KV", kv_bytes, "", ""), *outside]
            yield f"{_sum(everything)} = {_gib(taken + kv_bytes + beside)} is more than the host's {_gib(total)}"
        return
    room = total - max(share_bytes, taken + kv_bytes)
    if room < beside:
        yield (
            f"{_gib(max(0, room))} of {_gib(total)} is left for {_sum(outside)} = {_gib(beside)}; "
            "lower gpu_memory_utilization"
        )


def _kv_shortfall(pages: KvLayout, kv_bytes: int, *wanted: tuple[int, int]) -> Iterator[str]:
    for requests, tokens in dict.fromkeys(wanted):
        needed = requests * pages.blocks(tokens) * pages.block_bytes
        if needed > kv_bytes:
            many = f"{requests} requests" if requests > 1 else "a request"
            short = _gib(needed - kv_bytes)
            yield f"{_gib(needed)} of KV for {many} of {tokens:,} tokens, {_gib(kv_bytes)} is left: {short} too little"


def _page_shortfall(pages: KvLayout, mode: MambaMode, budget: int) -> Iterator[str]:
    # vLLM asserts this: in align mode a step must be able to reach the end of a page, where the state is saved.
    if pages.linear_groups and mode == "align" and budget < pages.page_tokens:
        yield f"max_num_batched_tokens is {budget:,}, and align mode needs a whole KV page of {pages.page_tokens:,}"


def _weights(profile: Profile, own_size: int, ranks: int, checkpoint_bytes: int | None) -> Part:
    part = _part("weights", profile.memory.weights, own_size / ranks)
    if not checkpoint_bytes or checkpoint_bytes == profile.model.bytes:
        return part
    if profile.model.bytes:
        size = part.bytes * checkpoint_bytes // profile.model.bytes
        return Part(part.name, size, "derived", f"{part.source}; scaled to this checkpoint's size")
    return Part(part.name, checkpoint_bytes // ranks, "derived", "this checkpoint's size over the ranks")


def _part(name: str, figure: Figure, scale: float = 1) -> Part:
    if figure.unit not in _UNITS:
        raise ConfigurationError(f'memory figure "{name}" has unit "{figure.unit}"; wanted one of {", ".join(_UNITS)}')
    return Part(name, round(figure.value * _UNITS[figure.unit] * scale), figure.provenance, figure.source)


def _share(arguments: Mapping[str, Any]) -> float:
    value = arguments.get("gpu_memory_utilization", 0.9)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigurationError(f"gpu_memory_utilization is {value!r}; wanted a number above 0 and up to 1, like 0.86")
    return float(value)


def _kv_element_bytes(arguments: Mapping[str, Any]) -> int:
    name = str(arguments.get("kv_cache_dtype", "auto"))
    if name.startswith("fp8"):
        return 1
    return _DTYPE_BYTES.get(str(arguments.get("dtype", "auto")) if name == "auto" else name, 2)


def _ssm_bytes(arguments: Mapping[str, Any], checkpoint: int) -> int:
    name = str(arguments.get("mamba_ssm_cache_dtype", "auto"))
    return checkpoint if name == "auto" else _DTYPE_BYTES.get(name, checkpoint)


def _mamba_mode(arguments: Mapping[str, Any]) -> MambaMode:
    # vLLM turns "none" into "align" with prefix caching, and anything into "none" without; the model has no "all".
    return "align" if arguments.get("enable_prefix_caching", True) else "none"


def _host_kv_bytes(environment: Mapping[str, str], total: int) -> int:
    gib = _whole(environment, "VLLM_CPU_KVCACHE_SPACE", 0)
    # vLLM takes half of the host where nothing is said.
    return gib * GIB or total // 2


def _whole(values: Mapping[str, Any], name: str, default: int) -> int:
    """Return a whole number; -1 and "auto" leave it to vLLM, for which `default` stands here."""
    value = values.get(name)
    if value is None or value in ("auto", -1, "-1"):
        return default
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigurationError(f"{name} is {value!r}; wanted a whole number")
    return number


def _sum(parts: Sequence[Part]) -> str:
    return " + ".join(f"{_gib(part.bytes)} {part.name}" for part in parts if part.bytes)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
