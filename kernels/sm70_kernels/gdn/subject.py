"""The gated delta net under proof: outputs, and the conv states, states and logs that change in place."""

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

CONV_STATE, SSM_STATE, LOG = 3, 5, 8
"""Places among the arguments of what changes."""

SPARE_SLOTS = 2
"""That no sequence uses and that must stay as they are."""


def _lengths(case: Case) -> list[int]:
    """Return the tokens of each sequence: those asked for, then fewer and fewer, at least one."""
    most = case.sizes.get("length", case.sizes.get("rows", 1))
    return [max(1, most - 3 * number) for number in range(case.sizes["sequences"])]


def _inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes, make = case.sizes, Maker(case, device)
    sequences, rows = sizes["sequences"], sizes.get("rows", 1)
    value_heads, taps, slots = sizes["value_heads"], sizes["width"], sizes["sequences"] * rows + SPARE_SLOTS
    channels = 2 * sizes["key_heads"] * sizes["key_head"] + value_heads * sizes["value_head"]
    lengths = _lengths(case)
    tokens = sum(lengths)
    # As in vLLM's cache: the channels of a column lie side by side.
    conv_state = make.normal(slots, taps + rows - 2, channels).mT
    ssm_state = make.normal(slots, value_heads, sizes["value_head"], sizes["key_head"], dtype=torch.float32)
    a_log = make.normal(value_heads, dtype=torch.float32) + sizes.get("decay", 0)
    gates = (make.normal(tokens, value_heads), make.normal(tokens, value_heads))
    layer = (conv_state, make.normal(channels, taps, spread=0.5), ssm_state, a_log, make.normal(value_heads))
    indices = make.whole(slots, below=2**31).argsort()[: sequences * rows].int().view(sequences, rows)
    if sizes.get("padding"):
        indices[sequences // 2] = -1
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    # A packed copy of one sequence's index too, whose stride is that of all rows.
    first = indices[:, 0].clone(memory_format=torch.contiguous_format)
    where: tuple[torch.Tensor, ...] = (first,)
    if case.operator == "gdn_prefill":
        where = (starts, *where, torch.arange(sequences, device=device) % 2 == 0)
    if case.operator.startswith("gdn_verify"):
        accepted = 1 + make.whole(sequences, below=rows).int()
        where = (starts, indices, accepted)
    if case.operator == "gdn_verify_log":
        log = make.normal(
            slots, rows, channels - sizes["key_heads"] * sizes["key_head"] + value_heads, dtype=torch.float32
        )
        log[..., -value_heads:].sigmoid_()
        # Some come from a prefill, which leaves nothing to replay.
        fresh = torch.arange(sequences, device=device) % 3 == 1
        accepted[fresh] = 1
        where = (log, starts, first, accepted, accepted.masked_fill(fresh, 0))
    return make.normal(tokens, channels), *gates, *layer, *where, sizes["key_heads"]


def run(function: Callable[..., None], *arguments: Any) -> torch.Tensor:  # noqa: ANN401 - an operator's
    """Return the `out` that `function` writes; it changes the caches among its arguments."""
    mixed_qkv, ssm_state = arguments[0], arguments[SSM_STATE]
    out = new_like(mixed_qkv[:, : ssm_state.shape[1] * ssm_state.shape[2]]).view(-1, *ssm_state.shape[1:3])
    function(*arguments[:-1], out, arguments[-1])
    return out


def _bytes(case: Case) -> int:
    sizes, tokens = case.sizes, sum(_lengths(case))
    values = sizes["value_heads"] * sizes["value_head"]
    channels = 2 * sizes["key_heads"] * sizes["key_head"] + values
    # One state is read and one is written, in a verification without a log for each row.
    states = sizes["sequences"] + (tokens if case.operator == "gdn_verify" else sizes["sequences"])
    history = 2 * 2 * sizes["sequences"] * channels * (sizes["width"] - 1)
    # As many rows are read of a log, at most, as are written.
    row = channels - sizes["key_heads"] * sizes["key_head"] + sizes["value_heads"]
    log = 2 * 4 * tokens * row if case.operator == "gdn_verify_log" else 0
    tokens_bytes = 2 * tokens * (channels + values + 2 * sizes["value_heads"])
    return tokens_bytes + 4 * states * values * sizes["key_head"] + history + log


KERNELS = {
    "gdn_decode": ("gdn_decode",),
    "gdn_prefill": ("gdn_chunks", "gdn_prefill"),
    "gdn_verify": (),
    "gdn_verify_log": ("gdn_verify",),
}
"""Of each operator; those without are plain torch."""


def _subject(name: str) -> Subject:
    return Subject(
        operator=name,
        kernels=KERNELS[name],
        inputs=_inputs,
        run=partial(run, getattr(torch.ops.sm70, name)),
        reference=partial(run, getattr(reference, name)),
        moved_bytes=_bytes,
        gate=GATE,
        mutates=(CONV_STATE, SSM_STATE, LOG) if name == "gdn_verify_log" else (CONV_STATE, SSM_STATE),
    )


SUBJECTS = tuple(_subject(name) for name in KERNELS)
