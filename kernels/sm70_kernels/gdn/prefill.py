"""Launch the two kernels of a prefill, with the workspace between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sm70_kernels.gdn import table
from sm70_kernels.launch import launch
from sm70_kernels.launch.layout import stride
from sm70_kernels.launch.turns import in_turn
from sm70_kernels.launch.workspace import reserve

if TYPE_CHECKING:
    from sm70_kernels.gdn.checks import Layer


def misfit(layer: Layer, where: tuple[torch.Tensor, ...], key_heads: int) -> str:
    """Say why the kernels do not take a batch whose layer's tensors fit, empty where they do."""
    if not all(each.is_contiguous() for each in where):
        return "query_start_loc, state_indices and has_initial_state must be packed"
    group = layer.ssm_state.shape[1] // key_heads
    return "" if group <= table.MOST_GROUP else f"{group} value heads on a key head; {table.MOST_GROUP} are built"


def prefill(layer: Layer, where: tuple[torch.Tensor, ...], out: torch.Tensor, key_heads: int) -> None:
    """Take many tokens of each sequence. `where` is query_start_loc, state_indices and has_initial_state.

    Lengths are read on the device. As many chunks are worked at a time as the workspace holds, which changes no bit.
    """
    mixed_qkv, b, a, conv_state, conv_weight, ssm_state, a_log, dt_bias = layer
    slots, heads = ssm_state.shape[:2]
    tokens, sequences = mixed_qkv.shape[0], where[1].shape[0]
    workspace, of_chunk = reserve(out.device), table.chunk_bytes(key_heads, heads)
    whole, at_once = table.prefill_chunks(tokens, sequences), workspace.numel() // sum(of_chunk)
    assert at_once, f"a chunk of {heads} heads is larger than the workspace"
    first_kernel, second_kernel = table.prefill()
    conv = (conv_state.stride(0), conv_state.stride(2))
    wide_bias = int(dt_bias.dtype == torch.float32)
    with in_turn(workspace):
        for first in range(0, whole, at_once):
            held = min(at_once, whole - first)
            keys, values = workspace, workspace[held * of_chunk[0] :]
            launch(
                first_kernel,
                (held, key_heads, 1),
                (
                    *(keys, values, mixed_qkv, b, a, conv_state, conv_weight, a_log, dt_bias, *where),
                    *(sequences, key_heads, heads, slots, wide_bias, tokens, first),
                    *(stride(mixed_qkv, 0), stride(b, 0), stride(a, 0), *conv),
                ),
            )
            launch(
                second_kernel,
                (table.HEAD // table.CHUNK_COLUMNS, heads, sequences),
                (
                    *(out, keys, values, mixed_qkv, conv_state, ssm_state, *where),
                    *(key_heads, heads, slots, tokens, first, held),
                    *(stride(mixed_qkv, 0), *conv, ssm_state.stride(0)),
                ),
            )
