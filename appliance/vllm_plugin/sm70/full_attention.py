"""Full attention around its kernel: norms of q and k with the rotary embedding in one operator, and the output gate.

vLLM replaces layers by class name only where their class is a CustomOp or a PluggableLayer. `Qwen3NextAttention` is
neither, and its gate is written out in its forward. So a model's own modules are given our class after they are built,
before anything is loaded or compiled; vLLM's class stays as it is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.model_executor.models.qwen3_next import Qwen3NextAttention

from appliance.vllm_plugin.sm70 import routes
from appliance.vllm_plugin.sm70.norms import Sm70GemmaRMSNorm
from appliance.vllm_plugin.sm70.operators import operator

if TYPE_CHECKING:
    import torch

ROUTE = "qk_norm_rope"
"""`additional_config["sm70"]` switches our class off under this name; two norms and vLLM's rotary remain."""

logger = logging.getLogger("vllm.appliance.sm70")


class Sm70Qwen3NextAttention(Qwen3NextAttention):  # type: ignore[misc]
    """Full attention through `torch.ops.sm70.qk_norm_mrope` and `sigmoid_gate`. Made by `bind`, never constructed."""

    def forward(self, positions: torch.Tensor, output: torch.Tensor, hidden_states: torch.Tensor) -> None:
        """Write the layer's result into `output` float16 [tokens, hidden]; `positions` is [tokens] or [3, tokens]."""
        qkv, _ = self.qkv_proj(hidden_states)
        tokens = qkv.shape[0]
        q_gate, k, v = qkv.split([2 * self.q_size, self.kv_size, self.kv_size], dim=-1)
        # A head's query is followed by its gate; the operators take both as they lie.
        q, gate = q_gate.view(tokens, self.num_heads, 2 * self.head_dim).chunk(2, dim=-1)
        q, k = self.norm_and_turn(
            q,
            k.view(tokens, self.num_kv_heads, self.head_dim),
            positions,
            self.q_norm.weight,
            self.k_norm.weight,
            self.rotary_emb.cos_sin_cache,
            self.sections,
            self.q_norm.variance_epsilon,
        )
        out = self.attn(q.view(tokens, self.q_size), k.view(tokens, self.kv_size), v)
        out = self.gate_output(out.view(tokens, self.num_heads, self.head_dim), gate)
        output[:], _ = self.o_proj(out.view(tokens, self.q_size))


def unsuitable(layer: Qwen3NextAttention) -> str | None:
    """Return why a layer cannot take our class; None where it can."""
    rotary = layer.rotary_emb
    if not layer.attn_output_gate:
        return "it has no output gate"
    if type(rotary) is not MRotaryEmbedding or not rotary.mrope_interleaved or len(rotary.mrope_section or ()) != 3:
        return f"its rotary embedding is {type(rotary).__name__}, not an interleaved one of three sections"
    if not rotary.is_neox_style or layer.dual_chunk_attention_config:
        return "its rotary embedding turns neighbours, or attention goes by dual chunks"
    norms = (layer.q_norm, layer.k_norm)
    if any(type(norm) is not Sm70GemmaRMSNorm or norm._forward_method == norm.forward_native for norm in norms):
        return "its q and k norms are vLLM's"
    if layer.q_norm.variance_epsilon != layer.k_norm.variance_epsilon:
        return "its q and k norms differ in epsilon"
    return None


def bind(model: torch.nn.Module) -> int:
    """Give our class to the full attention layers of a model that is not compiled yet; returns how many have it."""
    settings = (get_current_vllm_config().additional_config or {}).get("sm70") or {}
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is Qwen3NextAttention}
    if settings.get(ROUTE) is False or routes.switched_off(ROUTE):
        return 0
    bound = 0
    for name, layer in layers.items():
        reason = unsuitable(layer)
        if reason is not None:
            logger.warning("%s keeps vLLM's rotary embedding and output gate: %s", name, reason)
            continue
        layer.__class__ = Sm70Qwen3NextAttention
        layer.sections = [int(size) for size in layer.rotary_emb.mrope_section]
        layer.norm_and_turn = operator("qk_norm_mrope")
        layer.gate_output = operator("sigmoid_gate")
        bound += 1
    return bound
