"""SiLU·mul alone, and inside the product before it where the scales allow that."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.vllm_plugin.sm70 import synthetic_checkpoint as synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).half()


@pytest.mark.parametrize("enabled", [True, False])
def test_silu_and_mul_alone(sm70: None, enabled: bool) -> None:
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.activation import SiluAndMul

    from appliance.vllm_plugin.sm70.activation import CUSTOM_OPS

    custom_ops = ["none", *(f"+{name}" for name in CUSTOM_OPS if enabled)]
    with set_current_vllm_config(VllmConfig(compilation_config=CompilationConfig(custom_ops=custom_ops, mode=0))):
        layer = SiluAndMul()
    assert type(layer).__name__ == "Sm70SiluAndMul"
    assert layer._forward_method == (layer.forward_cpu if enabled else layer.forward_native)
    x = random(5, 96)
    gate, up = x.double().chunk(2, dim=-1)
    wanted = torch.nn.functional.silu(gate) * up
    assert float((layer(x).double() - wanted).norm() / wanted.norm()) < 1e-3


def mlp_of(model: torch.nn.Module) -> Any:
    return model.get_submodule("language_model.model.layers.0.mlp")


def whole_mlp(checkpoint: synthetic.Checkpoint, x: torch.Tensor, intermediate: int) -> torch.Tensor:
    def matrix(name: str) -> torch.Tensor:
        return checkpoint.matrices[f"layers.0.mlp.{name}_proj"]

    gate, up = (x.double() @ matrix(name)[:intermediate].T for name in ("gate", "up"))
    return (torch.nn.functional.silu(gate) * up) @ matrix("down")[:, :intermediate].T


@pytest.mark.parametrize("scheme", ["fp8-block", "ct-channel"])
def test_an_mlp_runs_gate_up_and_silu_as_one_operator(load: Callable[..., Any], scheme: synthetic.Scheme) -> None:
    checkpoint = synthetic.make(scheme)
    mlp = mlp_of(load(checkpoint))
    assert mlp.act_fn.fused
    x = random(5, synthetic.HIDDEN)
    wanted = whole_mlp(checkpoint, x, synthetic.INTERMEDIATE)
    assert float((mlp(x).double() - wanted).norm() / wanted.norm()) < 2e-3
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if "sm70" in str(node.target))
        return graph

    torch.compile(mlp, fullgraph=True, backend=backend)(x)
    assert seen == ["sm70.dense_w8a16_silu_mul.default", "sm70.dense_w8a16.default"]


def test_where_blocks_do_not_fit_silu_runs_apart_and_says_so(
    load: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 448 is three blocks and a half: a rank's second half of gate begins inside a block.
    monkeypatch.setattr(synthetic, "INTERMEDIATE", 448)
    for layer in (0, 1):
        for name in ("gate_proj", "up_proj"):
            monkeypatch.setitem(synthetic.LINEARS, f"layers.{layer}.mlp.{name}", (448, 256))
        monkeypatch.setitem(synthetic.LINEARS, f"layers.{layer}.mlp.down_proj", (256, 448))
    checkpoint = synthetic.make("ct-block")
    group = checkpoint.quantization["config_groups"]["group_0"]
    # The rows of down are not shared out in blocks either; it stays 16-bit here.
    for layer in (0, 1):
        name = f"layers.{layer}.mlp.down_proj"
        full = f"model.language_model.{name}"
        del checkpoint.tensors[f"{full}.weight_scale"]
        checkpoint.tensors[f"{full}.weight"] = checkpoint.matrices[name].bfloat16()
    checkpoint.quantization["ignore"].append("down_proj")
    assert group["targets"] == ["Linear"]
    with caplog.at_level(logging.WARNING, "vllm.appliance.sm70"):
        mlp = mlp_of(load(checkpoint, 1, 2))
    assert not mlp.act_fn.fused
    assert (
        "layers.0.mlp.gate_proj: SiLU runs apart from gate and up, because blocks of scales do not begin" in caplog.text
    )
    x = random(5, synthetic.HIDDEN)
    gate, up = (x.double() @ checkpoint.matrices[f"layers.0.mlp.{name}_proj"][224:].T for name in ("gate", "up"))
    wanted = torch.nn.functional.silu(gate) * up
    out = mlp.act_fn(mlp.gate_up_proj(x)[0])
    assert float((out.double() - wanted).norm() / wanted.norm()) < 1e-3


def test_an_activation_that_is_off_is_not_fused(load: Callable[..., Any]) -> None:
    mlp = mlp_of(load(synthetic.make(), custom_ops=[]))
    assert not mlp.act_fn.fused
    assert mlp.gate_up_proj(random(2, synthetic.HIDDEN))[0].shape == (2, 2 * synthetic.INTERMEDIATE)
