"""`torch.ops.sm70.gdn_decode`, `gdn_prefill`, `gdn_verify`, `gdn_verify_log`: convolution and recurrence.

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
- `gdn_verify_log` computes what `gdn_verify` does with one slot a sequence: state_indices int32[sequences]. The state
  in it is the one before the last round's rows, whose keys, writes and decays are in log float32[slots, rows, Hk·Dk +
  Hv·Dv + Hv]. The first num_replayed_rows int32[sequences] of them, those accepted, are done again and the state is
  stored; after anything but a verification they are 0 and num_accepted_tokens is 1 (`gdn.log` tells). This round's
  rows are then computed and logged, and the state in the slot stays. conv_state is as in `gdn_verify`.

On CUDA `gdn_decode` and `gdn_verify_log` are one launch where `checks` has no misfit, plain torch where it has. A state
index that is no slot then gives NaN and touches nothing, where plain torch raises.

Rows of `out` beyond query_start_loc[-1] stay as they are. Each raises ValueError where shapes or types do not fit.
"""

from __future__ import annotations

import threading

import torch

from sm70_kernels import dispatch
from sm70_kernels.errors import KernelError
from sm70_kernels.gdn import checks, prefill, reference, table
from sm70_kernels.launch import launch
from sm70_kernels.launch.layout import stride
from sm70_kernels.launch.turns import in_turn
from sm70_kernels.torch_library import nothing, refused, register

_TICKETS: dict[torch.device, torch.Tensor] = {}
_RESERVING = threading.Lock()


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


def _counts(layer: checks.Layer, key_heads: int) -> tuple[int, ...]:
    """What both kernels are told first of a layer's sizes, and whether its dt_bias is float32."""
    slots, heads = layer.ssm_state.shape[:2]
    return key_heads, heads, slots, int(layer.dt_bias.dtype == torch.float32)


def _steps(layer: checks.Layer) -> tuple[int, ...]:
    """How many elements lie between tokens, slots and columns, in the kernels' order."""
    tokens = (stride(x, 0) for x in (layer.mixed_qkv, layer.b, layer.a))
    return (*tokens, layer.conv_state.stride(0), layer.conv_state.stride(2), layer.ssm_state.stride(0))


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
    name, layer = "gdn_decode", checks.Layer(mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    checks.check(name, layer, out, key_heads)
    checks.integers(name, "state_indices", state_indices, (mixed_qkv.shape[0],))
    plain = checks.misfit(layer) or checks.result_misfit(out) or not state_indices.is_contiguous()
    dispatch.count(name, dispatch.REFERENCE if plain else dispatch.KERNEL, mixed_qkv.shape[0])
    if plain:
        if mixed_qkv.shape[0]:
            reference.gdn_decode(*layer, state_indices, out, key_heads)
        return
    tickets, heads = reserve_tickets(mixed_qkv.device), ssm_state.shape[1]
    counts, steps = _counts(layer, key_heads), _steps(layer)
    spec = table.decode(mixed_qkv.shape[0] * heads)
    most = table.TICKETS // table.decode_tickets(key_heads)
    with in_turn(tickets):
        for first in range(0, mixed_qkv.shape[0], most):
            part = slice(first, first + most)
            rows = (out[part], mixed_qkv[part], b[part], a[part])
            grid = (table.HEAD // spec.constants["COLUMNS"], heads, rows[0].shape[0])
            launch(spec, grid, (*rows, *layer[3:], state_indices[part], tickets, *counts, *steps))


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
    name, layer = "gdn_decode", checks.Layer(mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    checks.check(name, layer, out, key_heads)
    checks.integers(name, "state_indices", state_indices, (mixed_qkv.shape[0],))
    if mixed_qkv.shape[0]:
        reference.gdn_decode(*layer, state_indices, out, key_heads)


def _check_prefill(
    layer: checks.Layer,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    name, sequences = "gdn_prefill", state_indices.shape[0]
    checks.check(name, layer, out, key_heads)
    checks.integers(name, "state_indices", state_indices, (sequences,))
    checks.integers(name, "query_start_loc", query_start_loc, (sequences + 1,))
    checks.integers(name, "has_initial_state", has_initial_state, (sequences,), torch.bool)


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
    layer = checks.Layer(mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    where = (query_start_loc, state_indices, has_initial_state)
    _check_prefill(layer, *where, out, key_heads)
    reference.gdn_prefill(*layer, *where, out, key_heads)


def _prefill_on_gpu(
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
    layer = checks.Layer(mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    where = (query_start_loc, state_indices, has_initial_state)
    _check_prefill(layer, *where, out, key_heads)
    plain = checks.misfit(layer) or checks.result_misfit(out) or prefill.misfit(layer, where, key_heads)
    dispatch.count("gdn_prefill", dispatch.REFERENCE if plain else dispatch.KERNEL, mixed_qkv.shape[0])
    if plain:
        reference.gdn_prefill(*layer, *where, out, key_heads)
    elif mixed_qkv.shape[0] and state_indices.shape[0]:
        prefill.prefill(layer, where, out, key_heads)


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
    name, layer = "gdn_verify", checks.Layer(mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    if state_indices.ndim != 2 or not state_indices.shape[1]:
        raise refused(name, "state_indices int32[sequences, rows]", state_indices)
    sequences, rows = state_indices.shape
    checks.check(name, layer, out, key_heads, rows)
    checks.integers(name, "state_indices", state_indices, (sequences, rows))
    checks.integers(name, "query_start_loc", query_start_loc, (sequences + 1,))
    checks.integers(name, "num_accepted_tokens", num_accepted_tokens, (sequences,))
    if mixed_qkv.shape[0] and sequences:
        reference.gdn_verify(*layer, query_start_loc, state_indices, num_accepted_tokens, out, key_heads)


def _check_log(
    layer: checks.Layer,
    log: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    num_replayed_rows: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    name, ssm_state = "gdn_verify_log", layer.ssm_state
    if log.ndim != 3 or not log.shape[1]:
        raise refused(name, "a log [slots, rows, floats of a row]", log)
    checks.check(name, layer, out, key_heads, log.shape[1])
    slots, heads, value_head, key_head = ssm_state.shape
    width = key_heads * key_head + heads * value_head + heads
    if log.dtype not in (torch.float32, torch.float64) or log.shape[::2] != (slots, width):
        raise refused(name, f"a log float32[{slots}, rows, {width}]", log)
    sequences = state_indices.shape[0]
    checks.integers(name, "state_indices", state_indices, (sequences,))
    checks.integers(name, "query_start_loc", query_start_loc, (sequences + 1,))
    checks.integers(name, "num_accepted_tokens", num_accepted_tokens, (sequences,))
    checks.integers(name, "num_replayed_rows", num_replayed_rows, (sequences,))


def _gdn_verify_log(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    log: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    num_replayed_rows: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    layer = checks.Layer(mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    where = (log, query_start_loc, state_indices, num_accepted_tokens, num_replayed_rows)
    _check_log(layer, *where, out, key_heads)
    if mixed_qkv.shape[0] and state_indices.shape[0]:
        reference.gdn_verify_log(*layer, *where, out, key_heads)


def _verify_log_on_gpu(
    mixed_qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    conv_state: torch.Tensor,
    conv_weight: torch.Tensor,
    ssm_state: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803 - the checkpoint's name
    dt_bias: torch.Tensor,
    log: torch.Tensor,
    query_start_loc: torch.Tensor,
    state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    num_replayed_rows: torch.Tensor,
    out: torch.Tensor,
    key_heads: int,
) -> None:
    layer = checks.Layer(mixed_qkv, b, a, conv_state, conv_weight, ssm_state, A_log, dt_bias)
    counted = (query_start_loc, state_indices, num_accepted_tokens, num_replayed_rows)
    _check_log(layer, log, *counted, out, key_heads)
    heads, sequences, rows = ssm_state.shape[1], state_indices.shape[0], log.shape[1]
    spec = table.verify(rows, sequences * heads)
    plain = bool(checks.misfit(layer) or checks.log_misfit(log) or checks.result_misfit(out))
    plain = plain or spec is None or not all(each.is_contiguous() for each in counted)
    dispatch.count("gdn_verify_log", dispatch.REFERENCE if plain else dispatch.KERNEL, mixed_qkv.shape[0])
    if plain or spec is None:
        if mixed_qkv.shape[0] and sequences:
            reference.gdn_verify_log(*layer, log, *counted, out, key_heads)
        return
    tickets = reserve_tickets(mixed_qkv.device)
    counts, steps = (*_counts(layer, key_heads), mixed_qkv.shape[0], rows), _steps(layer)
    most = table.TICKETS // table.verify_tickets(key_heads, heads)
    with in_turn(tickets):
        for first in range(0, sequences, most):
            last = min(first + most, sequences)
            part = (query_start_loc[first : last + 1], *(each[first:last] for each in counted[1:]))
            grid = (table.HEAD // spec.constants["COLUMNS"], heads, last - first)
            tensors = (out, mixed_qkv, b, a, *layer[3:], log, *part, tickets)
            launch(spec, grid, (*tensors, *counts, *steps, log.stride(0)))


_LAYER = (
    "Tensor mixed_qkv, Tensor b, Tensor a, Tensor(a!) conv_state, Tensor conv_weight, Tensor(b!) ssm_state, "
    "Tensor A_log, Tensor dt_bias"
)
_VERIFIED = "Tensor query_start_loc, Tensor state_indices, Tensor num_accepted_tokens"
_CHANGED = ("conv_state", "ssm_state", "out")
register(
    f"gdn_decode({_LAYER}, Tensor state_indices, Tensor(c!) out, int key_heads) -> ()",
    cuda=_decode_on_gpu,
    cpu=_gdn_decode,
    fake=nothing,
    mutates=_CHANGED,
    counts_itself=True,
)
register(
    f"gdn_prefill({_LAYER}, Tensor query_start_loc, Tensor state_indices, Tensor has_initial_state, "
    "Tensor(c!) out, int key_heads) -> ()",
    cuda=_prefill_on_gpu,
    cpu=_gdn_prefill,
    fake=nothing,
    mutates=_CHANGED,
    counts_itself=True,
)
register(
    f"gdn_verify({_LAYER}, {_VERIFIED}, Tensor(c!) out, int key_heads) -> ()",
    cuda=None,
    cpu=_gdn_verify,
    fake=nothing,
    mutates=_CHANGED,
)
register(
    f"gdn_verify_log({_LAYER}, Tensor(c!) log, {_VERIFIED}, Tensor num_replayed_rows, Tensor(d!) out, "
    "int key_heads) -> ()",
    cuda=_verify_log_on_gpu,
    cpu=_gdn_verify_log,
    fake=nothing,
    mutates=("conv_state", "ssm_state", "log", "out"),
    counts_itself=True,
)
