"""Full attention around its kernel: vLLM's results with our norms, rotary embedding and gate, where layers suit."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.vllm_plugin.sm70 import synthetic_checkpoint as synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

TOKENS = 6


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Stands in for paged attention: every head sees its own token, so that q, k and v all matter."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads, kv_heads = (each.shape[-1] // synthetic.HEAD for each in (q, k))
        k, v = (
            each.view(-1, kv_heads, synthetic.HEAD).repeat_interleave(heads // kv_heads, 1).flatten(1)
            for each in (k, v)
        )
        return torch.tanh(q * k) + v


def attention_of(model: torch.nn.Module) -> Any:
    layer = model.get_submodule("language_model.model.layers.1.self_attn")
    layer.attn = Attention()
    return layer


def run(forward: Callable[..., Any], positions: torch.Tensor) -> torch.Tensor:
    hidden = torch.randn(TOKENS, synthetic.HIDDEN, generator=torch.Generator().manual_seed(3)).half()
    output = torch.full_like(hidden, torch.nan)
    with torch.no_grad():
        forward(positions=positions, output=output, hidden_states=hidden)
    return output


@pytest.mark.parametrize(
    "positions", [torch.arange(TOKENS), torch.randint(0, 200, (3, TOKENS))], ids=["text", "images"]
)
def test_the_results_are_upstreams(load: Callable[..., Any], positions: torch.Tensor) -> None:
    from vllm.model_executor.models.qwen3_next import Qwen3NextAttention

    layer = attention_of(load(synthetic.make()))
    assert type(layer).__name__ == "Sm70Qwen3NextAttention"
    ours = run(layer, positions)
    theirs = run(lambda **arguments: Qwen3NextAttention.forward(layer, **arguments), positions)
    assert bool(ours.isfinite().all())
    # vLLM rounds to FP16 after the norm, the rotary embedding and the gate's sigmoid.
    assert float((ours - theirs).double().norm() / theirs.double().norm()) < 3e-3


def test_torch_compile_sees_two_operators_around_attention(load: Callable[..., Any]) -> None:
    layer = attention_of(load(synthetic.make()))
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if "sm70" in str(node.target))
        return graph

    run(torch.compile(layer, fullgraph=True, backend=backend), torch.arange(TOKENS))
    dense = "sm70.dense_w8a16.default"
    assert seen == [dense, "sm70.qk_norm_mrope.default", "sm70.sigmoid_gate.default", dense]


def test_a_switch_leaves_upstreams_class(load: Callable[..., Any]) -> None:
    layer = attention_of(load(synthetic.make(), additional={"sm70": {"qk_norm_rope": False}}))
    assert type(layer).__name__ == "Qwen3NextAttention"
    assert type(layer.q_norm).__name__ == "Sm70GemmaRMSNorm"


def test_norms_that_are_off_leave_upstreams_class_and_say_so(
    load: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "vllm.appliance.sm70"):
        layer = attention_of(load(synthetic.make(), custom_ops=[]))
    assert type(layer).__name__ == "Qwen3NextAttention"
    assert "self_attn keeps vLLM's rotary embedding and output gate: its q and k norms are vLLM's" in caplog.text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda layer: setattr(layer, "attn_output_gate", False), "it has no output gate"),
        (
            lambda layer: setattr(layer.rotary_emb, "mrope_interleaved", False),
            "its rotary embedding is MRotaryEmbedding",
        ),
        (lambda layer: setattr(layer.rotary_emb, "is_neox_style", False), "its rotary embedding turns neighbours"),
        (lambda layer: setattr(layer.k_norm, "variance_epsilon", 1e-5), "its q and k norms differ in epsilon"),
    ],
)
def test_what_a_layer_must_be(load: Callable[..., Any], change: Callable[[Any], None], says: str) -> None:
    from appliance.vllm_plugin.sm70.full_attention import unsuitable

    layer = attention_of(load(synthetic.make()))
    # vLLM keeps one rotary embedding for all layers of all models in a process.
    layer.rotary_emb = copy.copy(layer.rotary_emb)
    assert unsuitable(layer) is None
    change(layer)
    assert says in str(unsuitable(layer))
