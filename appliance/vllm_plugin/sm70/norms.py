"""The norms of the model through our operators: Gemma's, with the residual kept in FP32, and the gated one of GDN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNormGated

from appliance.vllm_plugin.sm70 import routes
from appliance.vllm_plugin.sm70.operators import operator

if TYPE_CHECKING:
    import torch

CUSTOM_OPS = ("GemmaRMSNorm", "RMSNormGated")
"""Names by which the platform enables our classes in `custom_ops`."""


class Sm70GemmaRMSNorm(GemmaRMSNorm):  # type: ignore[misc]
    """x / rms(x) · (1 + weight) through `torch.ops.sm70.rms_norm` and `add_rms_norm`, one node for torch.compile."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps)
        self._rms_norm = operator("rms_norm")
        self._add_rms_norm = operator("add_rms_norm")
        if routes.switched_off("gemma_rms_norm"):
            self._forward_method = self.forward_native

    def forward_cuda(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the normed rows float16 [..., hidden]; with a residual, of x + residual, and that sum in float32."""
        if residual is None:
            out: torch.Tensor = self._rms_norm(x, self.weight, self.variance_epsilon)
            return out
        both: tuple[torch.Tensor, torch.Tensor] = self._add_rms_norm(x, residual, self.weight, self.variance_epsilon)
        return both

    forward_cpu = forward_cuda


class Sm70RMSNormGated(RMSNormGated):  # type: ignore[misc]
    """x / rms(x) · weight · silu(z) through `torch.ops.sm70.gated_rms_norm`."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, **rest: object) -> None:
        super().__init__(hidden_size, eps=eps, **rest)
        self._operator = operator("gated_rms_norm")
        if routes.switched_off("gated_rms_norm"):
            # vLLM's own for CUDA is a Triton kernel; its torch version is compiled with the rest.
            self._forward_method = self.forward_native
            return
        form = (self.group_size in (None, hidden_size), self.norm_before_gate, self.activation in ("swish", "silu"))
        if not all(form):
            raise ValueError(
                f"RMSNormGated(group_size={self.group_size}, norm_before_gate={self.norm_before_gate}, "
                f"activation={self.activation!r}) is not served on SM70: wanted are norms of whole heads before SiLU"
            )

    def forward_cuda(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        """Return the normed and gated heads, for x and z float16 [..., head]."""
        if z is None:
            raise ValueError("RMSNormGated wants a gate z on SM70; it got none")
        head = x.shape[-1]
        heads = x.unsqueeze(1) if x.ndim == 2 else x.reshape(-1, x.shape[-2], head)
        out: torch.Tensor = self._operator(heads, z.reshape(heads.shape), self.weight, self.eps)
        return out.view(x.shape)

    forward_cpu = forward_cuda


def register() -> None:
    """Replace vLLM's GemmaRMSNorm and RMSNormGated in this process."""
    for name, ours in (("GemmaRMSNorm", Sm70GemmaRMSNorm), ("RMSNormGated", Sm70RMSNormGated)):
        if op_registry_oot.get(name) is not ours:
            CustomOp.register_oot(ours, name=name)
