"""Which rows of a batch the gated delta net decodes, verifies or prefills, and where each sequence's state is.

vLLM 0.19.1's own builder takes a prompt, or a chunk's tail, of one token for a decode step, which would start from
whatever the state slot holds; it reads the state of a plain decode from the first slot though the last round's
accepted tokens left it in another; and it waits for the GPU on the way. Here the host decides by the numbers it has,
and the device is only told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionMetadataBuilder
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum, register_backend
from vllm.v1.attention.backends.utils import PAD_SLOT_ID, mamba_get_block_table_tensor

if TYPE_CHECKING:
    import numpy.typing as npt
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.kv_cache_interface import MambaSpec

    Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Split:
    """The sequences of a batch by what is done with them, as indices into the batch; padding is in none.

    `decode` sequences have one row and need no room for rows that may be rejected. `verify` sequences begin at the
    state that the last round accepted. `prefill` sequences compute rows of their prompt, be it one.
    """

    decode: Numbers
    verify: Numbers
    prefill: Numbers


def split(query_lens: Numbers, prefilling: Numbers, speculates: bool) -> Split:
    """Decide for each sequence, by its new rows and whether tokens of its prompt are still to be computed.

    Where drafts are made at all, a row without drafts is verified too: the round before may have accepted some.
    Sequences with more rows than `verify` can take are no concern here, the scheduler sends none after the prompt.
    """
    real = query_lens > 0
    going = real & ~prefilling
    # Without drafts, more than one row after the prompt can only be a sequence that is computed anew.
    one = going & ((query_lens == 1) | speculates)
    nothing = np.zeros(0, dtype=np.int64)
    later = np.flatnonzero(one)
    return Split(
        decode=nothing if speculates else later,
        verify=later if speculates else nothing,
        prefill=np.flatnonzero(real & ~one),
    )


@dataclass(slots=True)
class Rows:
    """One part of a batch: its sequences' state slots, and which rows of the batch are theirs.

    `state_indices` is int32[sequences], or int32[sequences, rows] for verification. Rows start at `first` and there
    are `count` of them, or, where they do not stand side by side, they are `tokens` int64[count].
    """

    state_indices: torch.Tensor
    query_start_loc: torch.Tensor
    first: int
    count: int
    tokens: torch.Tensor | None = None
    has_initial_state: torch.Tensor | None = None
    num_accepted_tokens: torch.Tensor | None = None


@dataclass(slots=True)
class GdnMetadata:
    """What `Sm70GatedDeltaNetAttention` needs of a batch; a part without sequences is None."""

    num_actual_tokens: int
    decode: Rows | None = None
    verify: Rows | None = None
    prefill: Rows | None = None


class Sm70GdnBackend(AttentionBackend):  # type: ignore[misc]
    """Takes the place of vLLM's GDN_ATTN."""

    @staticmethod
    def get_name() -> str:
        return "GDN_ATTN"

    @staticmethod
    def get_builder_cls() -> type[Sm70GdnMetadataBuilder]:
        return Sm70GdnMetadataBuilder


class Sm70GdnMetadataBuilder(GDNAttentionMetadataBuilder):  # type: ignore[misc]
    """A subclass, because the runner hands the accepted tokens only to those; its building is replaced whole."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: MambaSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        AttentionMetadataBuilder.__init__(self, kv_cache_spec, layer_names, vllm_config, device)
        speculative = vllm_config.speculative_config
        self.num_spec = int(speculative.num_speculative_tokens) if speculative else 0
        self._init_reorder_batch_threshold(1, self.num_spec > 0)
        self.cache_mode = vllm_config.cache_config.mamba_cache_mode
        # A graph reads its arguments where they were when it was captured.
        sequences = vllm_config.scheduler_config.max_num_seqs
        shape = (sequences, self.num_spec + 1) if self.num_spec else (sequences,)
        self.state_indices = torch.full(shape, PAD_SLOT_ID, dtype=torch.int32, device=device)
        self.query_start_loc = torch.zeros(sequences + 1, dtype=torch.int32, device=device)
        self.num_accepted_tokens = torch.ones(sequences, dtype=torch.int32, device=device)

    def build(
        self,
        common_prefix_len: int,  # noqa: ARG002 - cascade attention has no meaning for a state
        common_attn_metadata: CommonAttentionMetadata,
        num_accepted_tokens: torch.Tensor | None = None,
        num_decode_draft_tokens_cpu: torch.Tensor | None = None,  # noqa: ARG002
        fast_build: bool = False,  # noqa: ARG002
    ) -> GdnMetadata:
        """Return the metadata of one step. Nothing here waits for the GPU.

        Raises ValueError where drafts are configured and the runner did not hand over the accepted tokens.
        """
        m = common_attn_metadata
        if m.is_prefilling is None:
            raise ValueError("the gated delta net wants is_prefilling of each sequence; the runner gave none")
        table = mamba_get_block_table_tensor(m.block_table_tensor, m.seq_lens, self.kv_cache_spec, self.cache_mode)
        known = m.is_prefilling.numpy()
        # What `split` would find of a decode step, which comes a thousand times as often as any other.
        if (self.num_spec or m.max_query_len == 1) and not known.any():
            return self._after_prompts(m, table, num_accepted_tokens)
        starts = m.query_start_loc_cpu.numpy()
        lens = np.diff(starts)
        prefilling = np.zeros(lens.shape[0], dtype=bool)
        known = known[: lens.shape[0]]
        prefilling[: known.shape[0]] = known
        parts = split(lens, prefilling, self.num_spec > 0)
        if not parts.prefill.size:
            return self._after_prompts(m, table, num_accepted_tokens)
        meta = GdnMetadata(num_actual_tokens=m.num_actual_tokens)
        if parts.decode.size:
            meta.decode = self._rows(m, starts, parts.decode, table[:, 0])
        if parts.verify.size:
            if num_accepted_tokens is None:
                raise ValueError("a verification step wants num_accepted_tokens; the runner gave none")
            meta.verify = self._rows(m, starts, parts.verify, table[:, : self.num_spec + 1])
            meta.verify.num_accepted_tokens = self._take(num_accepted_tokens, parts.verify)
        meta.prefill = self._rows(m, starts, parts.prefill, table[:, 0])
        context = m.seq_lens - (m.query_start_loc[1:] - m.query_start_loc[:-1])
        meta.prefill.has_initial_state = self._take(context > 0, parts.prefill)
        return meta

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> GdnMetadata:
        """Return metadata for a captured step, in which every sequence is padding and no state is touched."""
        m = common_attn_metadata
        rows = self.num_spec + 1
        table = m.block_table_tensor.new_full((m.num_reqs, rows), PAD_SLOT_ID)
        meta = GdnMetadata(num_actual_tokens=m.num_actual_tokens)
        if self.num_spec:
            accepted = self.num_accepted_tokens.new_ones(m.num_reqs)
            meta.verify = self._persistent(m, table, accepted)
        else:
            meta.decode = self._persistent(m, table[:, 0])
        return meta

    def _after_prompts(
        self, m: CommonAttentionMetadata, table: torch.Tensor, accepted: torch.Tensor | None
    ) -> GdnMetadata:
        """Return the metadata of rows after the prompts alone: all sequences, from buffers that graphs know."""
        meta = GdnMetadata(num_actual_tokens=m.num_actual_tokens)
        if not self.num_spec:
            meta.decode = self._persistent(m, table[:, 0])
            return meta
        if accepted is None:
            raise ValueError("a verification step wants num_accepted_tokens; the runner gave none")
        meta.verify = self._persistent(m, table[:, : self.num_spec + 1], accepted)
        return meta

    def _persistent(
        self, m: CommonAttentionMetadata, table: torch.Tensor, accepted: torch.Tensor | None = None
    ) -> Rows:
        """Return all sequences of a step in place, through buffers whose addresses stay."""
        count = m.num_reqs
        if count > self.state_indices.shape[0]:
            raise ValueError(f"{count} sequences in a step; max_num_seqs is {self.state_indices.shape[0]}")
        indices = self.state_indices[:count]
        indices.copy_(table[:count], non_blocking=True)
        starts = self.query_start_loc[: count + 1]
        starts.copy_(m.query_start_loc[: count + 1], non_blocking=True)
        # Padding included: its rows belong to sequences without a slot, or to none.
        rows = Rows(indices, starts, 0, m.num_actual_tokens)
        if accepted is not None:
            rows.num_accepted_tokens = self.num_accepted_tokens[:count]
            rows.num_accepted_tokens.copy_(accepted[:count], non_blocking=True)
        return rows

    def _rows(self, m: CommonAttentionMetadata, starts: Numbers, sequences: Numbers, table: torch.Tensor) -> Rows:
        """Return some sequences of a batch: as views where they stand side by side, else gathered."""
        first, last = int(sequences[0]), int(sequences[-1])
        if last - first + 1 == sequences.size:
            begin, end = int(starts[first]), int(starts[last + 1])
            own = m.query_start_loc[first : last + 2]
            # A column of the block table has gaps, and the kernels read slots that lie side by side.
            slots = table[first : last + 1].contiguous()
            return Rows(slots, own - begin if begin else own, begin, end - begin)
        lens = (starts[sequences + 1] - starts[sequences]).astype(np.int64)
        own_starts = np.zeros(sequences.size + 1, dtype=np.int32)
        np.cumsum(lens, out=own_starts[1:])
        tokens = np.repeat(starts[sequences] - own_starts[:-1], lens) + np.arange(own_starts[-1])
        return Rows(
            self._take(table, sequences),
            self._to_device(own_starts),
            0,
            int(own_starts[-1]),
            tokens=self._to_device(tokens.astype(np.int64)),
        )

    def _take(self, x: torch.Tensor, sequences: Numbers) -> torch.Tensor:
        first, last = int(sequences[0]), int(sequences[-1])
        if last - first + 1 == sequences.size:
            return x[first : last + 1]
        return x.index_select(0, self._to_device(sequences))

    def _to_device(self, numbers: Numbers) -> torch.Tensor:
        on_host = torch.from_numpy(numbers)
        if self.device.type == "cpu":
            return on_host
        # From pinned memory the copy is queued; from other memory it would wait for all that was queued before.
        return on_host.pin_memory().to(self.device, non_blocking=True)


def register() -> None:
    """Let our backend answer for GDN_ATTN in this process."""
    path = f"{__name__}.{Sm70GdnBackend.__name__}"
    register_backend(MambaAttentionBackendEnum.GDN_ATTN, path, is_mamba=True)
