"""What the gated delta net's operators refuse, and what no kernel takes although plain torch does."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sm70_kernels.gdn import table
from sm70_kernels.launch.layout import packed, stride
from sm70_kernels.torch_library import FLOATS, refused


class Layer(NamedTuple):
    """What every operator begins with."""

    mixed_qkv: torch.Tensor
    b: torch.Tensor
    a: torch.Tensor
    conv_state: torch.Tensor
    conv_weight: torch.Tensor
    ssm_state: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor


def floats(name: str, what: str, x: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless `x` has a floating-point type and this shape."""
    if x.dtype not in FLOATS or x.shape != shape:
        raise refused(name, f"a floating-point {what} {list(shape)}", x)


def integers(name: str, what: str, x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> None:
    """Raise ValueError unless `x` has this type and shape."""
    if x.dtype != dtype or x.shape != shape:
        raise refused(name, f"{what} {str(dtype).removeprefix('torch.')}{list(shape)}", x)


def check(name: str, layer: Layer, out: torch.Tensor, key_heads: int, rows: int = 1) -> None:
    """Raise ValueError unless a layer's tensors fit together, with room in conv_state for `rows` rows a sequence."""
    mixed_qkv, b, a, conv_state, conv_weight, ssm_state, a_log, dt_bias = layer
    if ssm_state.ndim != 4 or ssm_state.dtype not in FLOATS:
        raise refused(name, "a floating-point ssm_state [slots, Hv, Dv, Dk]", ssm_state)
    slots, value_heads, value_head, key_head = ssm_state.shape
    if key_heads < 1 or value_heads % key_heads:
        raise refused(name, f"key_heads that divide {value_heads} value heads", key_heads)
    if mixed_qkv.ndim != 2:
        raise refused(name, "mixed_qkv [tokens, channels]", mixed_qkv)
    tokens, channels = mixed_qkv.shape[0], 2 * key_heads * key_head + value_heads * value_head
    floats(name, "mixed_qkv", mixed_qkv, (tokens, channels))
    for what, gate in (("b", b), ("a", a)):
        floats(name, what, gate, (tokens, value_heads))
    for what, weight in (("A_log", a_log), ("dt_bias", dt_bias)):
        floats(name, what, weight, (value_heads,))
    if conv_weight.ndim != 2 or conv_weight.shape[1] < 2:
        raise refused(name, f"a conv_weight [{channels}, width], width at least 2", conv_weight)
    width = conv_weight.shape[1]
    floats(name, "conv_weight", conv_weight, (channels, width))
    columns = width + rows - 2
    if conv_state.ndim != 3 or conv_state.shape[2] < columns:
        raise refused(name, f"a conv_state [{slots}, {channels}, {columns} or more]", conv_state)
    floats(name, "conv_state", conv_state, (slots, channels, conv_state.shape[2]))
    floats(name, "out", out, (tokens, value_heads, value_head))


def misfit(layer: Layer) -> str:
    """Say why the kernels do not take a layer's tensors, empty where they do. The operators then run plain torch."""
    mixed_qkv, b, a, conv_state, conv_weight, ssm_state, a_log, dt_bias = layer
    value_head, key_head = ssm_state.shape[2:]
    width = conv_weight.shape[1]
    if not table.fits(key_head, value_head, width):
        return (
            f"heads of {value_head}x{key_head} and {width} taps; {table.HEAD}x{table.HEAD} and {table.WIDTH} are built"
        )
    for name, x in (("mixed_qkv", mixed_qkv), ("b", b), ("a", a), ("conv_state", conv_state), ("weight", conv_weight)):
        if x.dtype != torch.float16:
            return f"{name} is {x.dtype}; float16 is built"
    if ssm_state.dtype != torch.float32 or a_log.dtype != torch.float32:
        return f"state and A_log are {ssm_state.dtype} and {a_log.dtype}; float32 is built"
    if dt_bias.dtype not in (torch.float16, torch.float32) or not dt_bias.is_contiguous() or not a_log.is_contiguous():
        return "A_log and dt_bias must be packed, dt_bias float16 or float32"
    heads_apart = (table.HEAD * table.HEAD, table.HEAD, 1)
    if ssm_state.stride()[1:] != heads_apart or ssm_state.stride(0) % 4 or ssm_state.data_ptr() % 16:
        return f"states of strides {list(ssm_state.stride())}; packed heads on 16-byte boundaries are built"
    steps = (conv_state.stride(0), conv_state.stride(2), stride(mixed_qkv, 0))
    if conv_state.stride(1) != 1 or mixed_qkv.stride(1) != 1 or any(step % 4 for step in steps):
        return f"channels {list(steps)} elements apart; neighbours on 8-byte boundaries are built"
    if (conv_state.data_ptr() | mixed_qkv.data_ptr()) % 8 or not packed(conv_weight):
        return "conv_state and mixed_qkv must lie on 8-byte boundaries and conv_weight be packed on 16"
    if b.stride(1) != 1 or a.stride(1) != 1:
        return "neighbouring heads of b and a must lie side by side"
    return ""


def log_misfit(log: torch.Tensor) -> str:
    """Say why the kernels do not take a log, empty where they do."""
    if log.dtype != torch.float32 or not log[0].is_contiguous() or log.stride(0) % 4 or log.data_ptr() % 16:
        return f"a log {log.dtype} of strides {list(log.stride())}; float32 and packed slots on 16 bytes are built"
    return "" if log.shape[2] % 4 == 0 else f"a log of {log.shape[2]} floats a row; a multiple of 4 is built"


def result_misfit(out: torch.Tensor) -> str:
    """Say why the kernels cannot write to `out`, empty where they can."""
    if out.dtype != torch.float16 or not out.is_contiguous():
        return f"out is {out.dtype} of strides {list(out.stride())}; packed float16 is built"
    return ""
