"""The three functions behind an attention layer, with the arguments of `torch.ops.sm70.*`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch

from appliance.vllm_plugin.sm70 import operators, providers

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENTS = 16
"""Parts into which upstream's decode kernel cuts a context."""

TOLERANCE = 5e-3
"""Of upstream's decode attention against the reference, in absolute terms; values are of order one."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a layer calls; signatures are those of kv_cache_write, attention_decode and attention_prefill."""

    write: Callable[..., None]
    decode: Callable[..., None]
    prefill: Callable[..., None]


def choose(kv_dtype: str, heads: int, head: int) -> Kernels:
    """Return the functions for a layer with `heads` query heads of `head` numbers on this machine."""
    # Triton knows no FP8 below capability 8.9, and nothing of our order inside a page.
    usable = kv_dtype == "auto" and not operators.packs_pages()
    decode: Callable[..., None] = operators.operator("attention_decode")
    chosen = providers.bind("attention_decode", (lambda: triton_fails(heads, head)) if usable else None)
    if chosen.provider == "triton":
        decode = TritonDecode(heads, head, decode, most_sequences())
    for name in ("kv_cache_write", "attention_prefill"):
        providers.bind(name)
    return Kernels(operators.operator("kv_cache_write"), decode, operators.operator("attention_prefill"))


class TritonDecode:
    """`attention_decode` through upstream's `kernel_unified_attention_3d` where each sequence has one row."""

    def __init__(self, heads: int, head: int, otherwise: Callable[..., None], sequences: int) -> None:
        """Serve up to `sequences` at once; the memory between the two passes is taken now, as graphs keep addresses."""
        self._otherwise = otherwise
        padded = 1 << (head - 1).bit_length()
        self._scratch = scratch(sequences, heads, padded, torch.cuda.current_device())

    def __call__(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        query_start_loc: torch.Tensor,
        out: torch.Tensor,
        scale: float,
        kv_dtype: str,
        k_scale: torch.Tensor,
        v_scale: torch.Tensor,
    ) -> None:
        sequences = seq_lens.shape[0]
        where = (query, kv_cache, block_table, seq_lens, query_start_loc, out)
        if query.shape[0] != sequences or sequences > self._scratch[0].shape[0]:
            self._otherwise(*where, scale, kv_dtype, k_scale, v_scale)
            return
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention

        operators.count("attention_decode", "triton", sequences)
        output, greatest, total = self._scratch
        keys, values = kv_cache.unbind(1)
        shape = (sequences, kv_cache.shape[3])
        unified_attention(
            q=query,
            k=keys,
            v=values,
            out=out,
            cu_seqlens_q=query_start_loc,
            max_seqlen_q=1,
            seqused_k=seq_lens,
            max_seqlen_k=block_table.shape[1] * kv_cache.shape[2],
            softmax_scale=scale,
            causal=True,
            window_size=(-1, -1),
            block_table=block_table,
            softcap=0,
            q_descale=None,
            k_descale=k_scale.expand(shape),
            v_descale=v_scale.expand(shape),
            # The three-dimensional kernel at every number of sequences: the other one spills its registers.
            seq_threshold_3D=output.shape[0],
            num_par_softmax_segments=SEGMENTS,
            softmax_segm_output=output,
            softmax_segm_max=greatest,
            softmax_segm_expsum=total,
        )


Scratch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_SCRATCH: dict[tuple[int, int, int, int], Scratch] = {}


def scratch(sequences: int, heads: int, head: int, gpu: int) -> Scratch:
    """Return what the decode kernel writes between its two passes; every layer of a size uses the same."""
    size = (sequences, heads, head, gpu)
    if size not in _SCRATCH:
        shapes = ((sequences, heads, SEGMENTS, head), (sequences, heads, SEGMENTS), (sequences, heads, SEGMENTS))
        output, greatest, total = (torch.empty(shape, dtype=torch.float32, device=f"cuda:{gpu}") for shape in shapes)
        _SCRATCH[size] = output, greatest, total
    return _SCRATCH[size]


def scratch_bytes() -> int:
    """Return the bytes of all that `scratch` gave in this process."""
    return sum(each.nbytes for three in _SCRATCH.values() for each in three)


def most_sequences() -> int:
    """Return max_num_seqs of the configuration in force, 1 where there is none."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return 1 if config is None else int(config.scheduler_config.max_num_seqs)


@cache
def triton_fails(heads: int, head: int) -> str:
    """Try upstream's decode attention on the current GPU against the reference; return why it cannot be used."""
    own = operators.operator("attention_decode")

    def tried(function: Callable[..., None]) -> Callable[[], tuple[torch.Tensor]]:
        return lambda: (_tried(function, heads, head),)

    candidate = TritonDecode(heads, head, own, 3)
    return providers.differs(tried(own), tried(candidate), lambda _: TOLERANCE)


def _tried(function: Callable[..., None], heads: int, head: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    page, pages, kv_heads = 32, 12, 1 if heads % 2 else 2

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cpu").half().cuda()

    cache_ = random(pages, 2, page, kv_heads, head)
    lengths = torch.tensor([1, page, 3 * page + 5], dtype=torch.int32, device="cuda")
    table = torch.arange(pages, dtype=torch.int32, device="cuda").view(3, 4)
    starts = torch.arange(4, dtype=torch.int32, device="cuda")
    query = random(3, heads, head)
    out = torch.zeros_like(query)
    one = torch.ones(1, device="cuda")
    function(query, cache_, table, lengths, starts, out, head**-0.5, "auto", one, one)
    return out
