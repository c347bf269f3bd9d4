"""Our model runner's guards, each beside what vLLM's runner does without it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports


class Base:
    """Stands for vLLM's runner: notes what it is given."""

    def __init__(self, **attributes: Any) -> None:
        self.given: dict[str, Any] = {}
        self.execute_model_state: Any = None
        self.speculative_config = None
        self.num_prompt_logprobs: dict[str, int] = {}
        for name, value in attributes.items():
            setattr(self, name, value)

    def _determine_batch_execution_and_padding(self, mode: Any) -> tuple[Any, ...]:
        return (mode, "descriptor")

    def _build_attention_metadata(self, **given: Any) -> None:
        self.given = given

    def execute_model(self, state: Any, *_: Any) -> None:
        self._determine_batch_execution_and_padding(state.mode)
        self.execute_model_state = state

    def sample_tokens(self, _grammar: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        self.given = {"hidden_states": self.execute_model_state.hidden_states}
        self.execute_model_state = None
        return ModelRunnerOutput(req_ids=["a", "b"], req_id_to_index={"a": 0, "b": 1})


def runner(**attributes: Any) -> Any:
    from appliance.vllm_plugin.sm70.runner import Sm70Steps

    class Ours(Sm70Steps, Base):  # type: ignore[misc]
        pass

    return Ours(**attributes)


def input_batch(computed: list[int], prompts: list[int], *, all_greedy: bool = True) -> Any:
    return SimpleNamespace(
        num_computed_tokens_cpu=np.array(computed),
        num_prompt_tokens=np.array(prompts),
        req_ids=["a", "b"][: len(computed)],
        num_reqs=len(computed),
        vocab_size=4,
        top_k_cpu=np.full(len(computed), 4),
        top_p_cpu=np.ones(len(computed)),
        sampling_metadata=SimpleNamespace(all_greedy=all_greedy),
    )


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_prompt_as_long_as_a_verification_step_replays_no_decode_graph(rows: int) -> None:
    """vllm-project/vllm #49918 and #53051."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    lengths = {"max_num_scheduled_tokens": rows, "uniform_decode_query_len": rows, "num_tokens": 2 * rows}
    assert GPUModelRunner._is_uniform_decode(**lengths, num_reqs=2)
    fresh = runner(input_batch=input_batch([40, 0], [30, rows]))
    assert not fresh._is_uniform_decode(**lengths, num_reqs=2)
    tail = runner(input_batch=input_batch([40, 32], [30, 32 + rows]))
    assert not tail._is_uniform_decode(**lengths, num_reqs=2)
    going = runner(input_batch=input_batch([40, 32 + rows], [30, 32 + rows]))
    assert going._is_uniform_decode(**lengths, num_reqs=2)
    assert not going._is_uniform_decode(**{**lengths, "num_tokens": 2 * rows + 1}, num_reqs=2)
    assert fresh._is_uniform_decode(**lengths, num_reqs=2, force_uniform_decode=True)


def test_the_accepted_tokens_are_handed_over_in_a_step_without_drafts() -> None:
    drafts = SimpleNamespace(np=np.array([3, 3]))
    one = runner(speculative_config=object(), num_decode_draft_tokens=drafts)
    one._build_attention_metadata(use_spec_decode=False)
    assert one.given["use_spec_decode"] is True
    assert drafts.np.tolist() == [-1, -1]
    drafts.np[:] = 3
    one._build_attention_metadata(use_spec_decode=True)
    assert drafts.np.tolist() == [3, 3]
    plain = runner()
    plain._build_attention_metadata(use_spec_decode=False)
    assert plain.given["use_spec_decode"] is False


class State(NamedTuple):
    """The fields of vLLM's ExecuteModelState that are read."""

    mode: Any
    logits: torch.Tensor | None
    hidden_states: torch.Tensor
    spec_decode_metadata: Any = None


def test_prompt_logprobs_beside_a_drafter_are_computed_from_a_copy() -> None:
    """vllm-project/vllm #53488: the drafter's graph writes into the same memory before they are read."""
    hidden = torch.ones(2, 4)
    for asked, copied in (({"a": 1}, True), ({}, False)):
        one = runner(speculative_config=object(), num_prompt_logprobs=asked, input_batch=input_batch([9], [3]))
        one.execute_model_state = State(None, None, hidden)
        one.sample_tokens(None)
        seen = one.given["hidden_states"]
        assert torch.equal(seen, hidden)
        assert (seen.data_ptr() != hidden.data_ptr()) is copied


def test_every_step_is_counted_by_what_it_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import CUDAGraphMode

    from appliance.vllm_plugin.sm70 import runner as module
    from appliance.vllm_plugin.sm70.counters import Counters

    counters = Counters()
    monkeypatch.setattr(module, "COUNTERS", counters)
    one = runner()
    modes = (CUDAGraphMode.FULL, CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE)
    for mode in modes:
        one.execute_model(State(mode, None, torch.ones(1)))
    assert counters.of_route("compile_graph") == {"dispatched": 0, "full_graph": 2, "piecewise_graph": 1, "eager": 1}


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_a_request_with_broken_logits_is_marked_and_its_rows_are_safe_to_sample(poison: float) -> None:
    logits = torch.randn(5, 100)
    logits[3, 17] = poison
    one = runner(input_batch=input_batch([9, 9], [3, 3], all_greedy=False))
    drafts = SimpleNamespace(num_draft_tokens=[1, 2])
    one.execute_model_state = State(None, logits, torch.ones(5, 4), drafts)
    assert one.sample_tokens(None).num_nans_in_logits == {"b": 1}
    assert logits.isfinite().all()


def test_sound_logits_are_marked_nowhere_and_stay_as_they_are() -> None:
    logits = torch.full((2, 248320), 65504.0)
    one = runner(input_batch=input_batch([9, 9], [3, 3], all_greedy=False))
    one.execute_model_state = State(None, logits.clone(), torch.ones(2, 4))
    assert not one.sample_tokens(None).num_nans_in_logits


def test_new_pages_are_zeroed_in_every_layer_and_no_others() -> None:
    from appliance.vllm_plugin.sm70.kv_cache import PageZeroer

    first, second = torch.ones(8, 2, 4), torch.ones(2, 4, 6)
    zeroer = PageZeroer(torch.device("cpu"), [(first, 0, 2), (first, 0, 2), (second, 1, 1)])
    zeroer.zero_block_ids([])
    zeroer.zero_block_ids([1, 3])
    assert first.flatten(1).sum(1).tolist() == [8, 8, 0, 0, 8, 8, 0, 0]
    assert second.sum((0, 2)).tolist() == [12, 0, 12, 0]


def test_states_are_copied_between_addresses_that_may_overlap() -> None:
    from appliance.vllm_plugin.sm70.kv_cache import copy_states_on_host

    memory = torch.arange(10, dtype=torch.uint8)
    at = memory.data_ptr()
    addresses = torch.tensor([at, at + 8]), torch.tensor([at + 2, at]), torch.tensor([5, 2])
    copy_states_on_host(*addresses)
    assert memory.tolist() == [8, 9, 0, 1, 2, 3, 4, 7, 8, 9]
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def test_vllms_runner_has_what_ours_reads() -> None:
    """Private names of vLLM 0.19.1 that a newer one may rename."""
    import inspect

    from vllm.v1.worker import cpu_worker, gpu_model_runner, mamba_utils
    from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner

    source = inspect.getsource(gpu_model_runner)
    for name in ("num_prompt_logprobs", "num_decode_draft_tokens", "runner_only_attn_layers", "_kernel_block_sizes"):
        assert f"self.{name} =" in source or f"self.{name}:" in source
    for name in (
        "_is_uniform_decode",
        "_determine_batch_execution_and_padding",
        "_build_attention_metadata",
        "_init_kv_zero_meta",
        "_zero_block_ids",
        "_kv_cache_spec_attn_group_iterator",
        "sample_tokens",
    ):
        assert callable(getattr(GPUModelRunner, name))
    assert {"logits", "hidden_states", "spec_decode_metadata"} <= set(ExecuteModelState._fields)
    assert hasattr(mamba_utils, "batch_memcpy")
    assert hasattr(cpu_worker, "CPUModelRunner")
