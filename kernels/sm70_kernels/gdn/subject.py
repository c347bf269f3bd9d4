"""The gated delta net under proof: outputs, conv states and states, each run on copies of the caches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import sm70_kernels.gdn.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels.gdn import reference
from sm70_kernels.launch.outputs import new_like
from sm70_kernels.proof.inputs import Maker
from sm70_kernels.proof.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm70_kernels.cases import Case

GATE = 1e-3
"""Of outputs and of states."""

SPARE_SLOTS = 2
"""That no sequence uses and that must stay as they are."""


def _lengths(case: Case) -> list[int]:
    """Return the tokens of each sequence: those asked for, then fewer and fewer, at least one."""
    most = case.sizes.get("length", case.sizes.get("rows", 1))
    return [max(1, most - 3 * number) for number in range(case.sizes["sequences"])]


def _inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    sequences, rows = sizes["sequences"], sizes.get("rows", 1)
    value_heads, width, slots = sizes["value_heads"], sizes["width"], sizes["sequences"] * rows + SPARE_SLOTS
    channels = 2 * sizes["key_heads"] * sizes["key_head"] + value_heads * sizes["value_head"]
    lengths = _lengths(case)
    tokens = sum(lengths)
    # As in vLLM's cache: the channels of a column lie side by side.
    conv_state = make.normal(slots, width + rows - 2, channels).mT
    ssm_state = make.normal(slots, value_heads, sizes["value_head"], sizes["key_head"], dtype=torch.float32)
    a_log = make.normal(value_heads, dtype=torch.float32) + sizes.get("decay", 0)
    gates = (make.normal(tokens, value_heads), make.normal(tokens, value_heads))
    layer = (conv_state, make.normal(channels, width, spread=0.5), ssm_state, a_log, make.normal(value_heads))
    indices = make.whole(slots, below=2**31).argsort()[: sequences * rows].int().view(sequences, rows)
    if sizes.get("padding"):
        indices[sequences // 2] = -1
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    where: tuple[torch.Tensor, ...] = (indices[:, 0].contiguous(),)
    if case.operator == "gdn_prefill":
        where = (starts, *where, torch.arange(sequences, device=device) % 2 == 0)
    if case.operator == "gdn_verify":
        where = (starts, indices, 1 + make.whole(sequences, below=rows).int())
    return make.normal(tokens, channels), *gates, *layer, *where, sizes["key_heads"]


def _run(
    function: Callable[..., None],
    *arguments: Any,  # noqa: ANN401 - an operator's
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mixed_qkv, b, a, conv_state, conv_weight, ssm_state, a_log, dt_bias, *where, key_heads = arguments
    conv_copy, ssm_copy = (new_like(cache).copy_(cache) for cache in (conv_state.mT, ssm_state))
    out = new_like(mixed_qkv[:, : ssm_state.shape[1] * ssm_state.shape[2]]).view(-1, *ssm_state.shape[1:3])
    layer = (mixed_qkv, b, a, conv_copy.mT, conv_weight, ssm_copy, a_log, dt_bias)
    function(*layer, *where, out, key_heads)
    return out, conv_copy, ssm_copy


def _bytes(case: Case) -> int:
    sizes, tokens = case.sizes, sum(_lengths(case))
    values = sizes["value_heads"] * sizes["value_head"]
    channels = 2 * sizes["key_heads"] * sizes["key_head"] + values
    # One state is read and, in a verification, one is written for each row.
    states = sizes["sequences"] + (tokens if case.operator == "gdn_verify" else sizes["sequences"])
    history = 2 * 2 * sizes["sequences"] * channels * (sizes["width"] - 1)
    return (
        2 * tokens * (channels + values + 2 * sizes["value_heads"]) + 4 * states * values * sizes["key_head"] + history
    )


KERNELS = {"gdn_decode": ("gdn_decode",)}
"""Of each operator; the others are plain torch."""

SUBJECTS = tuple(
    Subject(
        operator=name,
        kernels=KERNELS.get(name, ()),
        inputs=_inputs,
        run=partial(_run, getattr(torch.ops.sm70, name)),
        reference=partial(_run, getattr(reference, name)),
        moved_bytes=_bytes,
        gate=GATE,
    )
    for name in ("gdn_decode", "gdn_prefill", "gdn_verify")
)
