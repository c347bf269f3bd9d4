"""`torch.ops.sm70.gdn_decode`, `gdn_prefill` and `gdn_verify`: the gated delta net's convolution and recurrence.

Shapes: mixed_qkv [tokens, C] with q | k | v side by side, C = 2·Hk·Dk + Hv·Dv; b and a [tokens, Hv]; conv_state
[slots, C, columns] of any strides, columns ≥ width - 1; conv_weight [C, width]; ssm_state [slots, Hv, Dv, Dk]; A_log
and dt_bias [Hv]; out [tokens, Hv, Dv]; key_heads is Hk. A negative state index means padding: nothing is touched, and
the sequence's rows of `out` are zero. Valid sequences have slots of their own.

- `gdn_decode` takes one token a sequence: state_indices int32[tokens].
- `gdn_prefill` takes query_start_loc int32[sequences + 1], state_indices int32[sequences] and has_initial_state
  bool[sequences]. Where that is false, conv state and state begin at zero and nothing is read from the slot. An empty
  sequence touches nothing.
- `gdn_verify` takes state_indices int32[sequences, rows] and num_accepted_tokens int32[sequences], of the last round.
  It begins with the state at slot [s, accepted - 1] and writes the state after row r to slot [s, r], unless that is
  negative. conv_state has width + rows - 2 columns or more; slot [s, 0] holds those of the last round, in which the
  history is the width - 1 columns from accepted - 1 on.

On CUDA `gdn_decode` is one launch where `misfit` has nothing to say; a state index that is no slot then gives NaN and
touches nothing, where plain torch raises.

Rows of `out` beyond query_start_loc[-1] stay as they are. Each raises ValueError where shapes or types do not fit.
"""

from __future__ import annotations

import threading

import torch

from sm70_kernels.errors import KernelError
from sm70_kernels.gdn import reference, table
from sm70_kernels.launch import launch
from sm70_kernels.launch.layout import packed, stride
from sm70_kernels.launch.turns import in_turn
from sm70_kernels.torch_library import refused, register

_TICKETS: dict[torch.device, torch.Tensor] = {}
_RESERVING = threading.Lock()

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _floats(name: str, what: str, x: torch.Tensor, shape: tuple[int, ...]) -> None:
    if x.dtype not in FLOATS or x.shape != shape:
        raise refused(name, f"a floating-point {what} {list(shape)}", x)


def _integers(name: str, what: str, x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> None:
    if x.dtype != dtype or x.shape != shape:
        raise refused(name, f"{what} {str(dtype).removeprefix('torch.')}{list(shape)}", x)


def _check(
    name: str,
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
    rows: int = 1,
) -> None:
    if ssm_state.ndim != 4 or ssm_state.dtype not in FLOATS:
        raise refused(name, "a floating-point ssm_state [slots, Hv, Dv, Dk]", ssm_state)
    slots, value_heads, value_head, key_head = ssm_state.shape
    if key_heads < 1 or value_heads % key_heads:
        raise refused(name, f"key_heads that divide {value_heads} value heads", key_heads)
    if mixed_qkv.ndim != 2:
        raise refused(name, "mixed_qkv [tokens, channels]", mixed_qkv)
    tokens, channels = mixed_qkv.shape[0], 2 * key_heads * key_head + value_heads * value_head
    _floats(name, "mixed_qkv", mixed_qkv, (tokens, channels))
    for what, gate in (("b", b), ("a", a)):
        _floats(name, what, gate, (tokens, value_heads))
    for what, weight in (("A_log", a_log), ("dt_bias", dt_bias)):
        _floats(name, what, weight, (value_heads,))
    if conv_weight.ndim != 2 or conv_weight.shape[1] < 2:
        raise refused(name, f"a conv_weight [{channels}, width], width at least 2", conv_weight)
    width = conv_weight.shape[1]
    _floats(name, "conv_weight", conv_weight, (channels, width))
    columns = width + rows - 2
    if conv_state.ndim != 3 or conv_state.shape[2] < columns:
        raise refused(name, f"a conv_state [{slots}, {channels}, {columns} or more]", conv_state)
    _floats(name, "conv_state", conv_state, (slots, channels, conv_state.shape[2]))
    _floats(name, "out", out, (tokens, value_heads, value_head))


def reserve_tickets(device: torch.device) -> torch.Tensor:
    """Return a device's tickets, zeros made on the first call; do so before graphs are captured.

    One tensor serves all layers, which take turns (`launch.turns`). Raises KernelError when it would have to be made
    during a capture: it would lie in the graph's own memory, and be given to others with it.
    """
    with _RESERVING:
        if device not in _TICKETS:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise KernelError(
                    "launch_failed:gdn_decode",
                    f"the tickets of {device} are wanted during a graph capture and are not there: "
                    "call gdn.operator.reserve_tickets before",
                )
            _TICKETS[device] = torch.zeros(table.TICKETS, dtype=torch.int32, device=device)
        return _TICKETS[device]


def misfit(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
) -> str:
    """Say why the kernels do not take a layer's tensors, empty where they do. The operators then run plain torch."""
    value_head, key_head = ssm_state.shape[2:]
    width = conv_weight.shape[1]
    if not table.fits(key_head, value_head, width):
        return (
            f"heads of {value_head}x{key_head} and {width} taps; {table.HEAD}x{table.HEAD} and {table.WIDTH} are built"
        )
    for name, x in (("mixed_qkv", mixed_qkv), ("b", b), ("a", a), ("conv_state", conv_state), ("weight", conv_weight)):
        if x.dtype != torch.float16:
            return f"{name} is {x.dtype}; float16 is built"
    if ssm_state.dtype != torch.float32 or A_log.dtype != torch.float32:
        return f"state and A_log are {ssm_state.dtype} and {A_log.dtype}; float32 is built"
    if dt_bias.dtype not in (torch.float16, torch.float32) or not dt_bias.is_contiguous() or not A_log.is_contiguous():
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


def _decode_on_gpu(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    state_indices: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    layer = (mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    name = "gdn_decode"
    _check(name, *layer, out, key_heads)
    _integers(name, "state_indices", state_indices, (mixed_qkv.shape[0],))
    if misfit(*layer) or out.dtype != torch.float16 or not out.is_contiguous() or not state_indices.is_contiguous():
        _gdn_decode(*layer, state_indices, out, key_heads)
        return
    tickets = reserve_tickets(mixed_qkv.device)
    slots, heads = ssm_state.shape[:2]
    counts = (key_heads, heads, slots, int(dt_bias.dtype == torch.float32))
    steps = (*(stride(x, 0) for x in (mixed_qkv, b, a)), *(conv_state.stride(i) for i in (0, 2)), ssm_state.stride(0))
    spec = table.decode(mixed_qkv.shape[0] * heads)
    most = table.TICKETS // (2 * key_heads)
    weights = (conv_state, conv_weight, ssm_state, A_log, dt_bias)
    with in_turn(tickets):
        for first in range(0, mixed_qkv.shape[0], most):
            part = slice(first, first + most)
            rows = (out[part], mixed_qkv[part], b[part], a[part])
            grid = (table.HEAD // spec.constants["COLUMNS"], heads, rows[0].shape[0])
            launch(spec, grid, (*rows, *weights, state_indices[part], tickets, *counts, *steps))


def _gdn_decode(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    state_indices: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    name, layer = "gdn_decode", (mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    _check(name, *layer, out, key_heads)
    _integers(name, "state_indices", state_indices, (mixed_qkv.shape[0],))
    if mixed_qkv.shape[0]:
        reference.gdn_decode(*layer, state_indices, out, key_heads)


def _gdn_prefill(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    name, layer = "gdn_prefill", (mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    _check(name, *layer, out, key_heads)
    sequences = state_indices.shape[0]
    _integers(name, "state_indices", state_indices, (sequences,))
    _integers(name, "query_start_loc", query_start_loc, (sequences + 1,))
    _integers(name, "has_initial_state", has_initial_state, (sequences,), torch.bool)
    reference.gdn_prefill(*layer, query_start_loc, state_indices, has_initial_state, out, key_heads)


def _gdn_verify(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    name, layer = "gdn_verify", (mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    if state_indices.ndim != 2 or not state_indices.shape[1]:
        raise refused(name, "state_indices int32[sequences, rows]", state_indices)
    sequences, rows = state_indices.shape
    _check(name, *layer, out, key_heads, rows)
    _integers(name, "state_indices", state_indices, (sequences, rows))
    _integers(name, "query_start_loc", query_start_loc, (sequences + 1,))
    _integers(name, "num_accepted_tokens", num_accepted_tokens, (sequences,))
    if mixed_qkv.shape[0] and sequences:
        reference.gdn_verify(*layer, query_start_loc, state_indices, num_accepted_tokens, out, key_heads)


def _nothing(*_: object) -> None:
    """Be the fake implementation of an operator that only changes its arguments."""


_LAYER = (
    "Tensor mixed_qkv, Tensor b, Tensor a, Tensor(a!) conv_state, Tensor conv_weight, Tensor(b!) ssm_state, "
    "Tensor A_log, Tensor dt_bias"
)
for _schema, _kernel, _operator in (
    (f"gdn_decode({_LAYER}, Tensor state_indices, Tensor(c!) out, int key_heads) -> ()", _decode_on_gpu, _gdn_decode),
    (
        f"gdn_prefill({_LAYER}, Tensor query_start_loc, Tensor state_indices, Tensor has_initial_state, "
        "Tensor(c!) out, int key_heads) -> ()",
        None,
        _gdn_prefill,
    ),
    (
        f"gdn_verify({_LAYER}, Tensor query_start_loc, Tensor state_indices, Tensor num_accepted_tokens, "
        "Tensor(c!) out, int key_heads) -> ()",
        None,
        _gdn_verify,
    ),
):
    register(_schema, cuda=_kernel, cpu=_operator, fake=_nothing, mutates=("conv_state", "ssm_state", "out"))
