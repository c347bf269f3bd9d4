"""Norms bound by class name: upstream's results, FP32 residual, one node for torch.compile, off when not enabled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

HIDDEN, HEAD = 320, 64


@pytest.fixture
def build(sm70: None) -> Callable[..., Any]:
    """Construct a class of vLLM as a model does, with some custom ops enabled."""
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config

    def make(cls: Callable[..., Any], *arguments: Any, enabled: tuple[str, ...] = (), **more: Any) -> Any:
        custom_ops = ["none", *(f"+{name}" for name in enabled)]
        vllm_config = VllmConfig(compilation_config=CompilationConfig(custom_ops=custom_ops))
        with set_current_vllm_config(vllm_config):
            layer = cls(*arguments, **more).half()
        layer.seen = (
            vllm_config.compilation_config.enabled_custom_ops,
            vllm_config.compilation_config.disabled_custom_ops,
        )
        return layer

    return make


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0]))


def nodes(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Return the operators that torch.compile sees in a function."""
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch.compile(function, fullgraph=True, backend=backend)(*arguments)
    return [name for name in seen if "getitem" not in name]


def gemma(build: Callable[..., Any], **more: Any) -> Any:
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm

    layer = build(GemmaRMSNorm, HIDDEN, 1e-6, **more)
    layer.weight.data.copy_(random(HIDDEN) * 0.1)
    return layer


def test_gemmas_norm_is_upstreams(build: Callable[..., Any]) -> None:
    from appliance.vllm_plugin.sm70.norms import CUSTOM_OPS

    layer = gemma(build, enabled=CUSTOM_OPS)
    assert layer.seen == ({"GemmaRMSNorm": 1}, {})
    x = random(5, HIDDEN).half()
    assert torch.equal(layer(x), layer.forward_native(x))
    heads = random(5, 3, HIDDEN).half()
    assert torch.equal(layer(heads), layer.forward_native(heads))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_residual_is_handed_on_in_float32(build: Callable[..., Any], dtype: torch.dtype) -> None:
    layer = gemma(build, enabled=("GemmaRMSNorm",))
    x, residual = random(5, HIDDEN).half(), (random(6, HIDDEN)[:5] * 3).to(dtype)
    out, total = layer(x, residual)
    assert (out.dtype, total.dtype) == (torch.float16, torch.float32)
    for ours, theirs in zip((out, total), layer.forward_native(x, residual), strict=True):
        assert torch.equal(ours, theirs)


def test_torch_compile_sees_our_norms_as_one_node(build: Callable[..., Any]) -> None:
    layer = gemma(build, enabled=("GemmaRMSNorm",))
    x = random(5, HIDDEN).half()
    assert nodes(layer, x) == ["sm70.rms_norm.default"]
    assert nodes(layer, x, x.float()) == ["sm70.add_rms_norm.default"]


def test_a_norm_that_is_not_enabled_is_upstreams_and_counted_so(build: Callable[..., Any]) -> None:
    layer = gemma(build)
    assert layer.seen == ({}, {"GemmaRMSNorm": 1})
    x = random(5, HIDDEN).half()
    assert layer._forward_method == layer.forward_native
    assert torch.equal(layer(x), layer.forward_native(x))


def gated(build: Callable[..., Any], **more: Any) -> Any:
    from vllm.model_executor.layers.layernorm import RMSNormGated

    form = {"eps": 1e-6, "norm_before_gate": True} | more
    return build(RMSNormGated, HEAD, enabled=("RMSNormGated",), **form)


@pytest.mark.parametrize("shape", [(7, HEAD), (7, 4, HEAD)])
def test_the_gated_norm_is_upstreams(build: Callable[..., Any], shape: tuple[int, ...]) -> None:
    layer = gated(build)
    layer.weight.data.copy_(random(HEAD))
    x, z = random(*shape).half(), random(*shape).flip(0).half()
    wanted = layer.forward_native(x.double(), z.double()).detach()
    out = layer(x, z).detach()
    assert out.dtype == torch.float16
    assert float((out.double() - wanted).norm() / wanted.norm()) < 1e-3
    assert "sm70.gated_rms_norm.default" in nodes(layer, x, z)


@pytest.mark.parametrize("form", [{"norm_before_gate": False}, {"group_size": 16}, {"activation": "sigmoid"}])
def test_another_form_of_the_gated_norm_is_refused(build: Callable[..., Any], form: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"RMSNormGated\(group_size=.*\) is not served on SM70"):
        gated(build, **form)
    with pytest.raises(ValueError, match="wants a gate z"):
        gated(build)(random(3, HEAD).half())


def test_registering_twice_is_registering_once(sm70: None) -> None:
    from vllm.model_executor.custom_op import op_registry_oot

    from appliance.vllm_plugin.sm70 import activation, checkpoint_loader, fp8_config, lm_head, norms

    before = dict(op_registry_oot)
    for module in (fp8_config, lm_head, norms, activation, checkpoint_loader):
        module.register()
    assert op_registry_oot == before
    names = (*norms.CUSTOM_OPS, *activation.CUSTOM_OPS, *lm_head.CUSTOM_OPS)
    ours = {name for name, cls in before.items() if cls.__module__.startswith("appliance.")}
    assert ours == {*names, "GatedDeltaNetAttention"}
