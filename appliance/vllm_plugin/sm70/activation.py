"""SiLU·mul of the MLP, alone or inside the product before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.activation import SiluAndMul

from appliance.vllm_plugin.sm70 import routes
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
        if routes.switched_off("silu_mul"):
            self._forward_method = self.forward_native

    @property
    def ours(self) -> bool:
        """Whether our operator computes it; a product before it may then do so too."""
        return bool(self._forward_method == self.forward_cuda)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., width] of FP16 rows [..., 2 · width], gate first; or the rows where `fused`."""
        return x if self.fused else self._forward_method(x)

    def forward_cuda(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._operator(x)
        return out

    forward_cpu = forward_cuda


def register() -> None:
    """Replace vLLM's SiluAndMul in this process."""
    if op_registry_oot.get("SiluAndMul") is not Sm70SiluAndMul:
        CustomOp.register_oot(Sm70SiluAndMul, name="SiluAndMul")
