"""Our model runner: vLLM's, without the places where 0.19.1 goes silently wrong with this model.

`Sm70Steps` is mixed in before vLLM's runner for CUDA or for CPUs. Each method says what it guards against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.config import CUDAGraphMode
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from appliance.vllm_plugin.sm70 import sampling
from appliance.vllm_plugin.sm70.counters import COUNTERS
from appliance.vllm_plugin.sm70.kv_cache import PageZeroer, full_attention_caches
from appliance.vllm_plugin.sm70.sentinels import BrokenRows

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


STEPS = {CUDAGraphMode.FULL: "compile_graph.full_graph", CUDAGraphMode.PIECEWISE: "compile_graph.piecewise_graph"}
EAGER = "compile_graph.eager"
"""Names under which steps are counted. An eager step is one that replayed no CUDA graph at all."""

NONFINITE = "nonfinite_requests"


class _Marked(AsyncModelRunnerOutput):  # type: ignore[misc]
    """An output that is still on its way, which names the broken requests when it has arrived."""

    def __init__(self, output: AsyncModelRunnerOutput, mark: BrokenRows) -> None:
        self._output, self._mark = output, mark

    def get_output(self) -> ModelRunnerOutput:
        # The mark was queued before the tokens, so it is there when they are.
        return _name(self._output.get_output(), self._mark)


def _name(output: ModelRunnerOutput, mark: BrokenRows) -> ModelRunnerOutput:
    broken = mark.requests()
    if broken:
        COUNTERS.count(NONFINITE, len(broken))
        output.num_nans_in_logits = {**(output.num_nans_in_logits or {}), **broken}
    return output


class Sm70Steps:
    """Mixed in before vLLM's model runner."""

    # Attributes of vLLM's runner that are read here; a test holds that they are there.
    input_batch: Any
    speculative_config: Any
    execute_model_state: Any
    num_prompt_logprobs: dict[str, int]
    num_decode_draft_tokens: Any

    def __init__(self, *arguments: Any, **rest: Any) -> None:  # noqa: ANN401 - handed through to vLLM
        self._step_mode: CUDAGraphMode | None = None
        self._filter: sampling.Filter | None = None
        super().__init__(*arguments, **rest)

    def load_model(self, *arguments: Any, **rest: Any) -> Any:  # noqa: ANN401
        """Load the model; the routes are settled, so that the samplers can be given our filter."""
        self._filter = sampling.bind(self)
        return super().load_model(*arguments, **rest)  # type: ignore[misc]

    def _is_uniform_decode(
        self,
        max_num_scheduled_tokens: int,
        uniform_decode_query_len: int,
        num_tokens: int,
        num_reqs: int,
        force_uniform_decode: bool | None = None,
    ) -> bool:
        """Say whether a step may replay a full decode graph: never while a request still computes its prompt.

        vLLM compares lengths only. A prompt, or a chunk's tail, that is as long as a verification step (or as one
        token) would replay a graph that reads and writes other state than the metadata says.
        """
        if force_uniform_decode is not None:
            return force_uniform_decode
        if max_num_scheduled_tokens != uniform_decode_query_len or num_tokens != max_num_scheduled_tokens * num_reqs:
            return False
        batch = self.input_batch
        return bool(np.all(batch.num_computed_tokens_cpu[:num_reqs] >= batch.num_prompt_tokens[:num_reqs]))

    def _determine_batch_execution_and_padding(self, *arguments: Any, **rest: Any) -> Any:  # noqa: ANN401
        decided = super()._determine_batch_execution_and_padding(*arguments, **rest)  # type: ignore[misc]
        self._step_mode = decided[0]
        return decided

    def _build_attention_metadata(self, *arguments: Any, use_spec_decode: bool = False, **rest: Any) -> Any:  # noqa: ANN401
        """Hand the accepted tokens to the gated delta net in every step.

        vLLM does so only where the step has drafts; a step without any would read the state of the wrong row when the
        round before accepted some.
        """
        if self.speculative_config is not None and not use_spec_decode and not rest.get("for_cudagraph_capture"):
            self.num_decode_draft_tokens.np[:].fill(-1)
            use_spec_decode = True
        return super()._build_attention_metadata(*arguments, use_spec_decode=use_spec_decode, **rest)  # type: ignore[misc]

    def execute_model(self, scheduler_output: SchedulerOutput, *arguments: Any, **rest: Any) -> Any:  # noqa: ANN401
        result = super().execute_model(scheduler_output, *arguments, **rest)  # type: ignore[misc]
        if self.execute_model_state is not None:
            COUNTERS.count(STEPS.get(self._step_mode, EAGER))
        return result

    @torch.inference_mode()  # type: ignore[untyped-decorator] # torch is not analysed
    def sample_tokens(self, *arguments: Any, **rest: Any) -> Any:  # noqa: ANN401
        """Sample, and mark requests whose logits are not finite.

        Where prompt log-probabilities are asked for beside a drafter, the hidden states are copied first: the
        drafter's graph shares their memory and runs before vLLM reads them.
        """
        state = self.execute_model_state
        mark = None
        if state is not None:
            if self.speculative_config is not None and self.num_prompt_logprobs:
                state = state._replace(hidden_states=state.hidden_states.clone())
                self.execute_model_state = state
            if state.logits is not None:
                mark = self._marked(state)
                if not self.input_batch.sampling_metadata.all_greedy:
                    drafts = state.spec_decode_metadata
                    sampling.expect(self._filter, self.input_batch, drafts and drafts.num_draft_tokens)
        output = super().sample_tokens(*arguments, **rest)  # type: ignore[misc]
        if self._filter is not None:
            self._filter.forget()
        if mark is None or output is None:
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            return _Marked(output, mark)
        return _name(output, mark) if isinstance(output, ModelRunnerOutput) else output

    def _marked(self, state: Any) -> BrokenRows:  # noqa: ANN401
        batch = self.input_batch
        names = batch.req_ids[: batch.num_reqs]
        drafts = state.spec_decode_metadata
        rows = [1] * len(names) if drafts is None else [count + 1 for count in drafts.num_draft_tokens]
        mark = BrokenRows(state.logits, rows, names)
        if not batch.sampling_metadata.all_greedy:
            # A search for a threshold among NaNs need not end.
            state.logits.masked_fill_(mark.on_device[:, None], 0.0)
        return mark

    def _init_kv_zero_meta(self) -> None:
        """Zero new pages by plain torch operations; vLLM launches a Triton kernel for it."""
        runner: Any = self
        caches = full_attention_caches(
            runner._kv_cache_spec_attn_group_iterator(),
            runner._kernel_block_sizes,
            runner.cache_config.cache_dtype,
            runner.runner_only_attn_layers,
            runner.compilation_config.static_forward_context,
        )
        self._kv_block_zeroer = PageZeroer(runner.device, caches)

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        if hasattr(self, "_kv_block_zeroer"):
            self._kv_block_zeroer.zero_block_ids(block_ids)
