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

Rows of `out` beyond query_start_loc[-1] stay as they are. Each raises ValueError where shapes or types do not fit.
"""

from __future__ import annotations

import torch

from sm70_kernels.gdn import reference
from sm70_kernels.torch_library import refused, register

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
for _schema, _operator in (
    (f"gdn_decode({_LAYER}, Tensor state_indices, Tensor(c!) out, int key_heads) -> ()", _gdn_decode),
    (
        f"gdn_prefill({_LAYER}, Tensor query_start_loc, Tensor state_indices, Tensor has_initial_state, "
        "Tensor(c!) out, int key_heads) -> ()",
        _gdn_prefill,
    ),
    (
        f"gdn_verify({_LAYER}, Tensor query_start_loc, Tensor state_indices, Tensor num_accepted_tokens, "
        "Tensor(c!) out, int key_heads) -> ()",
        _gdn_verify,
    ),
):
    register(_schema, cuda=None, cpu=_operator, fake=_nothing, mutates=("conv_state", "ssm_state", "out"))
