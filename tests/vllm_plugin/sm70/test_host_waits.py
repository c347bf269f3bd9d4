"""The metadata of a step is made without waiting for the GPU.

Tensors of the device are fake ones on `cuda`: they have no values, so that whatever reads one on the host fails, be it
`.item()`, `.tolist()`, a condition, or an index whose size hangs on values. What the host has is real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

GPU = torch.device("cuda", 0)


PINNED: dict[int, torch.Tensor] = {}
"""Pinned tensors by identity, kept so that no other takes it."""


class HostIsReal(TorchDispatchMode):  # type: ignore[misc]
    """Computes what is on the host alone for real, and hands the rest to the mode below."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        device = keywords.get("device")
        found = tree_leaves((arguments, keywords))
        if function is torch.ops.aten._to_copy.default and device is not None and device.type == "cuda":
            source = arguments[0]
            assert isinstance(source, FakeTensor) or id(source) in PINNED, "a copy from unpinned memory waits"
            assert keywords.get("non_blocking"), "a copy without non_blocking waits"
        if any(isinstance(each, FakeTensor) for each in found) or (device is not None and device.type == "cuda"):
            return function(*arguments, **keywords)
        with unset_fake_temporarily():
            return function(*arguments, **keywords)


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """Tensors that say they are on a GPU, where there is none."""
    monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: PINNED.setdefault(id(self), self))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, HostIsReal():
        yield fake
    PINNED.clear()


def on_gpu(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=GPU)


def batch(new: list[int], prefilling: list[bool], pages: int = 4) -> Any:
    """Metadata as vLLM's runner has it: lengths on the device, and what it counted itself on the host."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    count, tokens = len(new), sum(new)
    return CommonAttentionMetadata(
        query_start_loc=on_gpu(count + 1),
        query_start_loc_cpu=torch.from_numpy(np.cumsum([0, *new], dtype=np.int32)),
        seq_lens=on_gpu(count),
        num_reqs=count,
        num_actual_tokens=tokens,
        max_query_len=max(new),
        max_seq_len=4096,
        block_table_tensor=on_gpu(count, pages),
        slot_mapping=on_gpu(tokens, dtype=torch.int64),
        is_prefilling=torch.tensor(prefilling),
    )


def gdn_builder(drafts: int, cache_mode: str) -> Any:
    from types import SimpleNamespace

    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import MambaSpec

    from appliance.vllm_plugin.sm70.gdn_metadata import Sm70GdnMetadataBuilder

    config = VllmConfig()
    config.scheduler_config.max_num_seqs = 8
    config.cache_config.mamba_cache_mode = cache_mode
    if drafts:
        config.speculative_config = SimpleNamespace(num_speculative_tokens=drafts, parallel_drafting=False)
    spec = MambaSpec(block_size=784, shapes=((4, 4),), dtypes=(torch.float16,), num_speculative_blocks=drafts)
    return Sm70GdnMetadataBuilder(spec, ["layer"], config, GPU)


BATCHES = {
    "decode": ([1, 1, 1], [False, False, False]),
    "padded decode": ([1, 1, 0], [False, False, False]),
    "prefill": ([40, 7], [True, True]),
    "mixed": ([1, 1, 30], [False, False, True]),
    "mixed out of order": ([1, 30, 1, 1], [False, True, False, True]),
}


def devices(rows: Any) -> set[str]:
    tensors = (getattr(rows, name, None) for name in type(rows).__slots__)
    return {each.device.type for each in tensors if isinstance(each, torch.Tensor)}


@pytest.mark.parametrize("cache_mode", ["none", "align"])
@pytest.mark.parametrize("drafts", [0, 7])
@pytest.mark.parametrize("kind", BATCHES)
def test_the_gated_delta_nets_metadata(mode: FakeTensorMode, kind: str, drafts: int, cache_mode: str) -> None:
    new, prefilling = BATCHES[kind]
    if drafts:
        new = [rows if prompt else rows * (drafts + 1) for rows, prompt in zip(new, prefilling, strict=True)]
    made = gdn_builder(drafts, cache_mode)
    meta = made.build(0, batch(new, prefilling, pages=drafts + 4), on_gpu(len(new)))
    parts = [part for part in (meta.decode, meta.verify, meta.prefill) if part is not None]
    assert parts
    assert set().union(*map(devices, parts)) == {"cuda"}
    captured = made.build_for_cudagraph_capture(batch(new, prefilling, pages=drafts + 4))
    assert captured.prefill is None


@pytest.mark.parametrize("kind", ["decode", "padded decode", "prefill", "mixed"])
def test_attentions_metadata(mode: FakeTensorMode, kind: str) -> None:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    from appliance.vllm_plugin.sm70.attention import Sm70AttentionMetadataBuilder

    spec = FullAttentionSpec(block_size=784, num_kv_heads=1, head_size=256, dtype=torch.float16)
    made = Sm70AttentionMetadataBuilder(spec, ["layer"], VllmConfig(), GPU)
    meta = made.build(0, batch(*BATCHES[kind]))
    parts = [part for part in (meta.decode, meta.prefill) if part is not None]
    assert parts
    assert set().union(*map(devices, parts)) == {"cuda"}


@pytest.mark.parametrize("p", [True, False])
def test_the_samplers_filter(mode: FakeTensorMode, p: bool) -> None:
    from appliance.vllm_plugin.sm70 import sampling_filter

    vocabulary = 4000
    top_k = np.array([20, vocabulary, 2000, 50, vocabulary], dtype=np.int32)
    top_p = np.array([0.9, 0.5, 0.9, 1.0, 1.0] if p else [1.0] * 5, dtype=np.float32)
    rows_p = on_gpu(5, dtype=torch.float32) if p else None
    logits = on_gpu(5, vocabulary, dtype=torch.float32)
    what = sampling_filter.plan(top_k, top_p, vocabulary)
    assert sampling_filter.apply(logits, on_gpu(5), rows_p, what).device.type == "cuda"
    assert sampling_filter.apply(logits, on_gpu(5), rows_p, sampling_filter.unknown(5)).device.type == "cuda"


def test_new_pages_are_zeroed(mode: FakeTensorMode) -> None:
    from appliance.vllm_plugin.sm70.kv_cache import PageZeroer

    cache = on_gpu(8, 2, 4, dtype=torch.float16)
    zeroer = PageZeroer(GPU, [])
    zeroer._caches = [(cache, 0, 2)]
    zeroer.zero_block_ids([1, 3])


def test_decode_by_the_references(mode: FakeTensorMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they serve on a GPU: the gated delta net in any step, attention while a graph is captured."""
    from sm70_kernels.attention import reference as attention
    from sm70_kernels.gdn import reference as gdn

    count, heads, key_heads, head, width, slots = 3, 12, 4, 128, 4, 40
    channels = (heads + 2 * key_heads) * head
    half, single = torch.float16, torch.float32

    def states(rows: int) -> Any:
        return (
            on_gpu(slots, width - 2 + rows, channels, dtype=half).transpose(-1, -2),
            on_gpu(channels, width, dtype=half),
            on_gpu(slots, heads, head, head, dtype=single),
            on_gpu(heads, dtype=single),
            on_gpu(heads, dtype=single),
        )

    def rows(tokens: int) -> Any:
        return (
            on_gpu(tokens, channels, dtype=half),
            on_gpu(tokens, heads, dtype=half),
            on_gpu(tokens, heads, dtype=half),
        )

    decoded: list[Any] = [*rows(count), *states(1), on_gpu(count), on_gpu(count, heads, head, dtype=half), key_heads]
    gdn.gdn_decode(*decoded)
    where = (on_gpu(count + 1), on_gpu(count, 8), on_gpu(count))
    out = on_gpu(8 * count, heads, head, dtype=half)
    verified: list[Any] = [*rows(8 * count), *states(8), *where, out, key_heads]
    gdn.gdn_verify(*verified)

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    query, cache = on_gpu(count, 6, 256, dtype=half), on_gpu(8, 2, 32, 1, 256, dtype=half)
    one = on_gpu(1, dtype=single)
    new = on_gpu(count, 1, 256, dtype=half)
    attention.kv_cache_write(new, new, cache, on_gpu(count, dtype=torch.int64), "auto", one, one)
    places = (on_gpu(count, 4), on_gpu(count), on_gpu(count + 1))
    attention.attention_decode(query, cache, *places, torch.empty_like(query), 0.0625, "auto", one, one)


READS: dict[str, Any] = {
    "item": lambda x: x.sum().item(),
    "list": lambda x: x.tolist(),
    "condition": lambda x: bool((x > 0).any()),
    "whole number": lambda x: int(x[0]),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "numpy": lambda x: x.cpu().numpy(),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_on_the_host_fails_here(mode: FakeTensorMode, read: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError, fake_tensor.DynamicOutputShapeException)):
        READS[read](on_gpu(4))
