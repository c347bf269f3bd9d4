"""SiLU·mul of the MLP, alone or inside the product before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.activation import SiluAndMul

from appliance.vllm_plugin.sm70.operators import operator

if TYPE_CHECKING:
    import torch

CUSTOM_OPS = ("SiluAndMul",)
"""Names by which the platform enables our classes in `custom_ops`."""


class Sm70SiluAndMul(SiluAndMul):  # type: ignore[misc]
    """silu(gate) · up through `torch.ops.sm70.silu_and_mul`; the identity where `fused`."""

    def __init__(self, *, compile_native: bool = True) -> None:
        super().__init__(compile_native=compile_native)
        self.fused = False
        self._operator = operator("silu_and_mul")
        # On a CPU vLLM's constructor chooses its own torch version; choose again, by what is enabled.
        self._forward_method = self.dispatch_forward(compile_native=compile_native)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., width] of FP16 rows [..., 2 · width], gate first; or the rows where `fused`."""
        return x if self.fused else self._forward_method(x)

    def forward_cuda(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._operator(x)
        return out

    forward_cpu = forward_cuda


def pair_gate_up(model: torch.nn.Module) -> int:
    """Let each FP8 gate and up of a model know the activation that follows it; returns how many there are.

    To be called before weights are packed. A layer that can, then computes silu(gate) · up in one operator.
    """
    from appliance.vllm_plugin.sm70.linear_fp8 import Sm70Fp8LinearMethod

    pairs = 0
    for module in model.modules():
        method: Any = getattr(getattr(module, "gate_up_proj", None), "quant_method", None)
        activation = getattr(module, "act_fn", None)
        if not isinstance(method, Sm70Fp8LinearMethod) or type(activation) is not Sm70SiluAndMul:
            continue
        # A bias would have to be added before the activation.
        if module.gate_up_proj.bias is None and activation.enabled():
            method.activation = activation
            pairs += 1
    return pairs


def register() -> None:
    """Replace vLLM's SiluAndMul in this process."""
    if op_registry_oot.get("SiluAndMul") is not Sm70SiluAndMul:
        CustomOp.register_oot(Sm70SiluAndMul, name="SiluAndMul")
