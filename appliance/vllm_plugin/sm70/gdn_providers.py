"""The functions behind the gated delta net's layer, with the arguments of `torch.ops.sm70.gdn_*`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from appliance.vllm_plugin.sm70 import operators, providers

if TYPE_CHECKING:
    from collections.abc import Callable

TOLERANCE = 2e-2
"""Of upstream's decode step against the reference, relative to the greatest value: FP16 inputs, FP16 result."""


def decode() -> Callable[..., None]:
    """Return what computes one token a sequence on this machine."""
    chosen = providers.bind("gdn_decode", triton_fails)
    return triton_decode if chosen.provider == "triton" else operators.operator("gdn_decode")


def operator(name: str) -> Callable[..., None]:
    """Return `torch.ops.sm70.NAME` for prefill or verification: upstream's kernels for both are not usable on SM70."""
    providers.bind(name)
    return operators.operator(name)


def triton_decode(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state_indices: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,  # noqa: ARG001 - upstream takes it from the shapes
) -> None:
    """Be `torch.ops.sm70.gdn_decode` through upstream's convolution and packed recurrent step."""
    from vllm.model_executor.layers.fla.ops import fused_recurrent_gated_delta_rule_packed_decode
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

    operators.count("gdn_decode", "triton", mixed_qkv.shape[0])
    convolved = causal_conv1d_update(
        mixed_qkv, conv_state, conv_weight, None, "silu", conv_state_indices=state_indices, validate_data=False
    )
    fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv=convolved,
        a=a,
        b=b,
        A_log=a_log,
        dt_bias=dt_bias,
        scale=float(ssm_state.shape[-1]) ** -0.5,
        initial_state=ssm_state,
        out=out.unsqueeze(1),
        ssm_state_indices=state_indices,
        use_qk_l2norm_in_kernel=True,
    )


@cache
def triton_fails() -> str:
    """Try upstream's decode step on the current GPU against the reference; return why it cannot be used."""
    return providers.differs(
        lambda: _tried(operators.operator("gdn_decode")),
        lambda: _tried(triton_decode),
        lambda right: TOLERANCE * float(right.float().abs().max()),
    )


def _tried(function: Callable[..., None]) -> tuple[torch.Tensor, ...]:
    """Run a decode step of this model's head sizes, a padding sequence in it; return its results."""
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cpu").half().cuda()

    key_heads, value_heads, head, width, slots = 4, 12, 128, 4, 5
    channels = 2 * key_heads * head + value_heads * head
    conv_state = random(slots, width - 1, channels).transpose(-1, -2)
    ssm_state = random(slots, value_heads, head, head).float() * 0.1
    indices = torch.tensor([3, -1, 1], dtype=torch.int32, device="cuda")
    tokens = indices.shape[0]
    out = torch.zeros(tokens, value_heads, head, dtype=torch.float16, device="cuda")
    function(
        random(tokens, channels),
        random(tokens, value_heads),
        random(tokens, value_heads),
        conv_state,
        random(channels, width),
        ssm_state,
        random(value_heads).float(),
        random(value_heads).float(),
        indices,
        out,
        key_heads,
    )
    return out, conv_state, ssm_state
