"""Our builder for the gated delta net on real vLLM classes, beside what vLLM's own builder makes of the same batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.kernels.gdn.gdn_layers import GdnLayer, Sizes, exact, relative

if TYPE_CHECKING:
    from appliance.vllm_plugin.sm70.gdn_metadata import GdnMetadata

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

SEQUENCES, SLOTS = 8, 64


def builder(drafts: int = 0, theirs: bool = False) -> Any:
    """Return a metadata builder for a mamba cache with a slot for each draft."""
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
    from vllm.v1.kv_cache_interface import MambaSpec

    from appliance.vllm_plugin.sm70.gdn_metadata import Sm70GdnMetadataBuilder

    config = VllmConfig()
    config.scheduler_config.max_num_seqs = SEQUENCES
    if drafts:
        config.speculative_config = SimpleNamespace(num_speculative_tokens=drafts, parallel_drafting=False)
    spec = MambaSpec(block_size=1024, shapes=((4, 4),), dtypes=(torch.float16,), num_speculative_blocks=drafts)
    kind = GDNAttentionMetadataBuilder if theirs else Sm70GdnMetadataBuilder
    return kind(spec, ["layer"], config, torch.device("cpu"))


def batch(computed: list[int], new: list[int], prompts: list[int], drafts: int = 0) -> Any:
    """Return the metadata that all backends get; sequence i owns slots i·(drafts + 1) + 1 and on."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    count = len(new)
    starts = torch.tensor([0, *np.cumsum(new)], dtype=torch.int32)
    done, prompt = torch.tensor(computed), torch.tensor(prompts)
    table = (torch.arange(count * (drafts + 1), dtype=torch.int32) + 1).view(count, drafts + 1)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=(done + torch.tensor(new)).int(),
        num_reqs=count,
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(new),
        max_seq_len=int((done + torch.tensor(new)).max()),
        block_table_tensor=table,
        slot_mapping=torch.zeros(int(starts[-1]), dtype=torch.int64),
        is_prefilling=done < prompt,
    )


def slots(part: Any) -> list[Any]:
    return list(part.state_indices.tolist())


def test_a_prompt_of_one_token_begins_with_an_empty_state_where_vllm_takes_what_the_slot_holds() -> None:
    one = batch(computed=[9, 0], new=[1, 1], prompts=[9, 1])
    theirs = builder(theirs=True).build(0, one)
    assert (theirs.num_decodes, theirs.num_prefills) == (2, 0)
    ours: GdnMetadata = builder().build(0, one)
    assert ours.decode is not None
    assert ours.prefill is not None
    assert slots(ours.decode) == [1]
    assert slots(ours.prefill) == [2]
    assert ours.prefill.has_initial_state is not None
    assert ours.prefill.has_initial_state.tolist() == [False]


@pytest.mark.parametrize("tail", range(1, 10))
@pytest.mark.parametrize("drafts", [0, 3, 7])
def test_a_chunks_tail_of_any_length_is_prefill_and_keeps_its_state(tail: int, drafts: int) -> None:
    meta = builder(drafts).build(0, batch([32], [tail], [32 + tail], drafts), torch.ones(1, dtype=torch.int32))
    assert meta.decode is None
    assert meta.verify is None
    assert meta.prefill is not None
    assert (meta.prefill.first, meta.prefill.count, slots(meta.prefill)) == (0, tail, [1])
    assert meta.prefill.has_initial_state is not None
    assert meta.prefill.has_initial_state.tolist() == [True]


@pytest.mark.parametrize("length", range(1, 21))
@pytest.mark.parametrize("drafts", [0, 3, 7])
def test_a_prompt_of_any_length_is_prefill_beside_running_requests(length: int, drafts: int) -> None:
    rows = drafts + 1
    accepted = torch.tensor([rows, 1], dtype=torch.int32)
    meta = builder(drafts).build(0, batch([40, 0], [rows, length], [40, length], drafts), accepted)
    going = meta.verify if drafts else meta.decode
    assert going is not None
    assert meta.prefill is not None
    assert (going.first, going.count) == (0, rows)
    assert (meta.prefill.first, meta.prefill.count) == (rows, length)
    assert meta.prefill.query_start_loc.tolist() == [0, length]
    assert slots(meta.prefill) == [rows + 1]
    if drafts:
        assert going.num_accepted_tokens is not None
        assert going.num_accepted_tokens.tolist() == [rows]


def test_a_plain_step_after_accepted_drafts_begins_at_the_accepted_state_where_vllm_takes_the_first() -> None:
    """Two sequences after their prompts; the second has no drafts this time, but had three accepted tokens before."""
    accepted = torch.tensor([2, 3], dtype=torch.int32)
    one = batch([20, 30], [4, 1], [8, 8], drafts=3)
    drafts = torch.tensor([3, -1], dtype=torch.int32)
    theirs = builder(3, theirs=True).build(0, one, accepted, drafts)
    assert theirs.non_spec_state_indices_tensor.tolist() == [5]
    meta = builder(3).build(0, one, accepted, drafts)
    assert meta.prefill is None
    assert meta.verify is not None
    assert slots(meta.verify) == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert meta.verify.num_accepted_tokens is not None
    assert meta.verify.num_accepted_tokens.tolist() == [2, 3]


def test_padding_of_a_graph_touches_no_state() -> None:
    from vllm.v1.attention.backends.utils import PAD_SLOT_ID

    one = batch([20, 30, 0, 0], [1, 1, 0, 0], [8, 8, 0, 0])
    one.num_actual_tokens = 4
    one.block_table_tensor[2:] = PAD_SLOT_ID
    meta = builder().build(0, one)
    assert meta.decode is not None
    assert slots(meta.decode) == [1, 2, -1, -1]
    assert meta.decode.count == 4


def test_a_graph_finds_its_arguments_where_they_were() -> None:
    made = builder(3)
    for count in (1, 5):
        meta = made.build(0, batch([20] * count, [4] * count, [8] * count, 3), torch.ones(count, dtype=torch.int32))
        captured = made.build_for_cudagraph_capture(batch([0] * count, [4] * count, [0] * count, 3))
        assert set(np.unique(captured.verify.state_indices)) == {-1}
        for name in ("state_indices", "query_start_loc", "num_accepted_tokens"):
            assert getattr(meta.verify, name).data_ptr() == getattr(captured.verify, name).data_ptr()


def test_sequences_that_stand_apart_are_gathered() -> None:
    made = builder()
    one = batch([9, 0, 9], [1, 3, 1], [9, 3, 9])
    meta = made.build(0, one)
    assert meta.decode is not None
    assert meta.decode.tokens is not None
    assert meta.decode.tokens.tolist() == [0, 4]
    assert slots(meta.decode) == [1, 3]
    assert meta.decode.query_start_loc.tolist() == [0, 1, 2]


def test_a_runner_that_hands_over_no_accepted_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="wants num_accepted_tokens"):
        builder(3).build(0, batch([20], [4], [8], 3))


class Core:
    """Our layer's core over real operators and caches, driven by our builder's metadata."""

    def __init__(self, layer: GdnLayer, monkeypatch: pytest.MonkeyPatch) -> None:
        from appliance.vllm_plugin.sm70 import gdn, gdn_providers

        self.layer = layer
        ours: Any = gdn.Sm70GatedDeltaNetAttention
        self._core = ours._forward_core
        self._context = SimpleNamespace(attn_metadata={})
        monkeypatch.setattr(gdn, "get_forward_context", lambda: self._context)
        self._module: Any = SimpleNamespace(
            prefix="layer",
            kv_cache=[layer.conv_state.transpose(-1, -2), layer.ssm_state],
            conv1d=SimpleNamespace(weight=layer.conv_weight[:, None]),
            A_log=layer.a_log,
            dt_bias=layer.dt_bias,
            num_k_heads=layer.sizes.key_heads,
            tp_size=1,
            decode=gdn_providers.operator("gdn_decode"),
        )
        self._module._run = lambda *given: ours._run(self._module, *given)

    def step(self, meta: Any, rows: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self._context.attn_metadata["layer"] = meta
        out = torch.zeros_like(self.layer.out(rows[0].shape[0]))
        self._core(self._module, *rows, out)
        return out


def test_a_request_that_drafts_now_and_then_gets_what_it_would_get_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of four tokens (as long as a verification step), rounds with and without drafts, a neighbour beside."""
    drafts = 3
    layer = GdnLayer(Sizes(rows=drafts + 1, slots=9, dtype=torch.float32))
    core, made = Core(layer, monkeypatch), builder(drafts)
    rounds = [(4, 1), (4, 3), (1, 1), (4, 2), (1, 1), (1, 1)]
    """New rows of each step, and how many of them are accepted: the others are drafts that come to nothing."""
    kept: list[tuple[torch.Tensor, ...]] = []
    seen, computed, accepted = [], 0, 1
    for number, (new, taken) in enumerate(rounds):
        inputs = layer.inputs(new)
        neighbour = layer.inputs(4)
        one = batch([computed, 50], [new, 4], [4, 50], drafts)
        meta = made.build(0, one, torch.tensor([accepted, 2], dtype=torch.int32))
        assert (meta.prefill is not None) == (number == 0)
        out = core.step(meta, tuple(torch.cat(pair) for pair in zip(inputs, neighbour, strict=True)))
        good = new if number == 0 else taken
        kept.append(tuple(each[:good] for each in inputs))
        seen.append(out[:good])
        computed, accepted = computed + good, 1 if number == 0 else good
    whole = tuple(torch.cat(part) for part in zip(*kept, strict=True))
    wanted, _ = exact(layer, whole, layer.no_memory())
    assert relative(torch.cat(seen), wanted) < 1e-5


@pytest.mark.parametrize("length", [1, 2, 3, 5, 20])
def test_a_prompt_in_a_used_slot_gets_what_it_would_get_in_a_fresh_one(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = GdnLayer(Sizes(slots=4, dtype=torch.float32))
    layer.poison(1)
    core, made = Core(layer, monkeypatch), builder()
    running, prompt, after = layer.inputs(1), layer.inputs(length), layer.inputs(1)
    rows = tuple(torch.cat(pair) for pair in zip(running, prompt, strict=True))
    first = core.step(made.build(0, batch([9, 0], [1, length], [9, length])), rows)[1:]
    rows = tuple(torch.cat(pair) for pair in zip(running, after, strict=True))
    second = core.step(made.build(0, batch([10, length], [1, 1], [9, length])), rows)[1:]
    whole = tuple(torch.cat(pair) for pair in zip(prompt, after, strict=True))
    wanted, _ = exact(layer, whole, layer.no_memory())
    assert relative(torch.cat((first, second)), wanted) < 1e-5
