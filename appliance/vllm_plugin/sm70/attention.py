"""The attention backend CUSTOM: full attention over a paged KV cache through `torch.ops.sm70.*`.

The KV cache is [pages, 2, page_size, Hkv, D], pages outermost, in FP16, or in bytes of E4M3 or E5M2. Sequences after
their prompt (one row, or the rows of a verification step) stand first in a batch and go through `attention_decode`,
the others through `attention_prefill`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from appliance.vllm_plugin.sm70 import attention_providers, routes
from appliance.vllm_plugin.sm70.admission import KV_FORMATS
from appliance.vllm_plugin.sm70.counters import COUNTERS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.kv_cache_interface import AttentionSpec

ROUTE = "mixed_batch_resident_decode"
"""Switched off, the sequences after their prompt go through `attention_prefill` with the others in a mixed batch."""

MOST_DECODE_ROWS = 16


@dataclass(slots=True)
class Sequences:
    """Some sequences of a batch that stand side by side, and where their rows are."""

    first: int
    last: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor


@dataclass(slots=True)
class Sm70AttentionMetadata:
    """What a step's attention layers need; a part without sequences is None."""

    num_actual_tokens: int
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int
    decode: Sequences | None
    prefill: Sequences | None


class Sm70AttentionMetadataBuilder(AttentionMetadataBuilder[Sm70AttentionMetadata]):  # type: ignore[misc]
    """Splits a batch by numbers that the host has; nothing here waits for the GPU."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.apart = not routes.declined(ROUTE)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        assert self.reorder_batch_threshold is not None
        if self.reorder_batch_threshold > MOST_DECODE_ROWS:
            raise ValueError(
                f"{self.reorder_batch_threshold} rows in a verification step; at most {MOST_DECODE_ROWS} are served: "
                f"set num_speculative_tokens to {MOST_DECODE_ROWS - 1} or fewer"
            )

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002 - cascade attention is off
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,  # noqa: ARG002
    ) -> Sm70AttentionMetadata:
        """Return the metadata of one step."""
        m = common_attn_metadata
        threshold = self.reorder_batch_threshold
        sequences, prefills, tokens, _ = split_decodes_and_prefills(m, decode_threshold=threshold)
        if sequences and prefills:
            if self.apart:
                COUNTERS.count(ROUTE)
            else:
                sequences, prefills, tokens = 0, sequences + prefills, 0
        decode = prefill = None
        if sequences:
            starts = m.query_start_loc[: sequences + 1]
            decode = Sequences(0, tokens, starts, m.seq_lens[:sequences], m.block_table_tensor[:sequences])
        if prefills:
            starts = m.query_start_loc[sequences:]
            starts = starts - tokens if tokens else starts
            table = m.block_table_tensor[sequences:]
            prefill = Sequences(tokens, m.num_actual_tokens, starts, m.seq_lens[sequences:], table)
        return Sm70AttentionMetadata(
            m.num_actual_tokens, m.slot_mapping, m.max_query_len, m.max_seq_len, decode, prefill
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> Sm70AttentionMetadata:
        """Return the metadata of a captured step; one token a sequence, so that capturing walks no long contexts."""
        metadata = self.build(0, common_attn_metadata)
        common_attn_metadata.seq_lens.fill_(1)
        return metadata


class Sm70AttentionImpl(AttentionImpl[Sm70AttentionMetadata]):  # type: ignore[misc]
    """One attention layer. Raises ValueError where the model asks for what the operators do not compute."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        asked = {
            "ALiBi": alibi_slopes is not None,
            "a sliding window": sliding_window is not None,
            "a soft cap of logits": bool(logits_soft_cap),
            f"attention of type {attn_type}": attn_type != AttentionType.DECODER,
            "a KV cache shared between layers": kv_sharing_target_layer_name is not None,
        }
        if wrong := [what for what, wanted in asked.items() if wanted]:
            raise ValueError(f"attention on SM70 does not compute {', '.join(wrong)}: it serves causal full attention")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_dtype = KV_FORMATS[kv_cache_dtype]
        self.kernels = attention_providers.choose(self.kv_dtype, self.num_heads, self.head_size)

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Sm70AttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write keys and values to their slots, attend, and return `output` [tokens, Hq, D]."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attention on SM70 writes FP16; a quantised output is not served")
        if attn_metadata is None:
            return output.fill_(0)
        count = attn_metadata.num_actual_tokens
        scales = (layer._k_scale, layer._v_scale)
        slots = attn_metadata.slot_mapping[:count]
        self.kernels.write(key[:count], value[:count], kv_cache, slots, self.kv_dtype, *scales)
        parts = ((attn_metadata.decode, self.kernels.decode), (attn_metadata.prefill, self.kernels.prefill))
        for part, attend in parts:
            if part is not None:
                rows = slice(part.first, part.last)
                where = (part.block_table, part.seq_lens, part.query_start_loc)
                attend(query[rows], kv_cache, *where, output[rows], self.scale, self.kv_dtype, *scales)
        return output


class Sm70AttentionBackend(AttentionBackend):  # type: ignore[misc]
    """vLLM's description of the backend; `get_name` must be a member of its enum, since vLLM looks it up there."""

    accept_output_buffer: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(KV_FORMATS)
    forward_includes_kv_cache_update: bool = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Sm70AttentionImpl]:
        return Sm70AttentionImpl

    @staticmethod
    def get_builder_cls() -> type[Sm70AttentionMetadataBuilder]:
        return Sm70AttentionMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",  # noqa: ARG004 - the bytes of a page follow from the tensor's type
    ) -> tuple[int, ...]:
        return (num_blocks, 2, block_size, num_kv_heads, head_size)

    @staticmethod
    def use_cascade_attention(*_: object, **_rest: object) -> bool:
        return False


def register() -> None:
    """Let our backend answer for CUSTOM in this process."""
    register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.{Sm70AttentionBackend.__name__}")
