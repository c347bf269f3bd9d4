"""The gated delta net of linear-attention layers: vLLM's layer, with our operators for convolution and recurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.forward_context import get_forward_context
from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.layers.mamba.gdn_linear_attn import GatedDeltaNetAttention

from appliance.vllm_plugin.sm70 import gdn_providers
from appliance.vllm_plugin.sm70.gdn_metadata import GdnMetadata, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class ConvolutionWeight(LinearMethodBase):  # type: ignore[misc]
    """The convolution's weight lies in a linear layer that is never called: it stays as it was loaded.

    On a CPU vLLM would hand it to a matrix library, which takes its three dimensions for two and may free it.
    """

    def create_weights(self, *_: object, **_rest: object) -> None:
        raise NotImplementedError("the convolution's weight is created by vLLM's own method")

    def apply(self, *_: object, **_rest: object) -> torch.Tensor:
        raise NotImplementedError("the convolution is computed by the gated delta net, not as a linear layer")


class Sm70GatedDeltaNetAttention(GatedDeltaNetAttention):  # type: ignore[misc]
    """vLLM's layer whose core goes through `torch.ops.sm70.gdn_decode`, `gdn_verify` and `gdn_prefill`."""

    def __init__(self, *arguments: object, **rest: object) -> None:
        super().__init__(*arguments, **rest)
        self.conv1d.quant_method = ConvolutionWeight()
        self.decode = gdn_providers.decode()

    def _warmup_prefill_kernels(self, mixed_qkv: torch.Tensor) -> None:
        """Nothing to warm up: vLLM would autotune its chunked Triton kernels here, which we never launch."""

    def _forward_core(
        self, mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, core_attn_out: torch.Tensor
    ) -> None:
        """Write what the recurrence gives for [tokens, …] into `core_attn_out` and update the states in place."""
        context = get_forward_context().attn_metadata
        if context is None:
            # A profiling run: nothing has a state yet, and the operators take no memory that grows with the batch.
            return
        metadata = context[self.prefix]
        assert isinstance(metadata, GdnMetadata)
        inputs = (mixed_qkv, b, a, core_attn_out)
        if metadata.decode is not None:
            self._run(self.decode, inputs, metadata.decode, (metadata.decode.state_indices,))
        if (rows := metadata.verify) is not None:
            extra = (rows.query_start_loc, rows.state_indices, rows.num_accepted_tokens)
            self._run(gdn_providers.operator("gdn_verify"), inputs, rows, extra)
        if (rows := metadata.prefill) is not None:
            extra = (rows.query_start_loc, rows.state_indices, rows.has_initial_state)
            self._run(gdn_providers.operator("gdn_prefill"), inputs, rows, extra)

    def _run(
        self,
        function: Callable[..., None],
        inputs: tuple[torch.Tensor, ...],
        rows: Rows,
        extra: tuple[torch.Tensor | None, ...],
    ) -> None:
        conv_state, ssm_state = self.kv_cache[0].transpose(-1, -2), self.kv_cache[1]
        weight = self.conv1d.weight
        if rows.tokens is not None:
            mixed_qkv, b, a, out = (each.index_select(0, rows.tokens) for each in inputs)
        elif rows.count == inputs[0].size(0):
            mixed_qkv, b, a, out = inputs
        else:
            part = slice(rows.first, rows.first + rows.count)
            mixed_qkv, b, a, out = (each[part] for each in inputs)
        layer = (mixed_qkv, b, a, conv_state, weight.view(weight.size(0), weight.size(-1)), ssm_state)
        function(*layer, self.A_log, self.dt_bias, *extra, out, self.num_k_heads // self.tp_size)
        if rows.tokens is not None:
            inputs[-1].index_copy_(0, rows.tokens, out)


def register() -> None:
    """Replace vLLM's GatedDeltaNetAttention in this process."""
    if op_registry_oot.get("GatedDeltaNetAttention") is not Sm70GatedDeltaNetAttention:
        PluggableLayer.register_oot(Sm70GatedDeltaNetAttention, name="GatedDeltaNetAttention")
