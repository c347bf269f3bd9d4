"""Dense layers with FP8 weights under proof."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

import sm70_kernels.dense.operator  # noqa: F401 - registers torch.ops.sm70
from sm70_kernels.dense import reference
from sm70_kernels.dense.pack import pack_blocks, pack_channels
from sm70_kernels.proof.subject import Subject, generator

if TYPE_CHECKING:
    from sm70_kernels.cases import Case
    from sm70_kernels.dense.pack import PackedDense

_PERIOD = 1_000_003
"""Codes are drawn on the CPU and repeated on the device: a prime, so that no two rows of a real layer are alike."""


def _layer(case: Case, device: torch.device) -> PackedDense:
    """Return a layer with every finite code in it and scales from 2^-13 to 2^-7: no result overflows FP16.

    `channel` 1 gives each column its scale, else each block; `zeros` 1 makes some blocks and columns zero, with scales
    that are no numbers; `power` is that of two by which the weights are multiplied.
    """
    sizes, numbers = case.sizes, generator(case)
    gated = case.operator == "dense_w8a16_silu_mul"
    n, k, halves = sizes["n"], sizes["k"], 2 if gated else 1
    drawn = torch.randint(0, 256, (min(_PERIOD, halves * n * k),), generator=numbers, dtype=torch.uint8)
    drawn[(drawn & 0x7F) == 0x7F] = 0
    codes = drawn.to(device).repeat(math.ceil(halves * n * k / drawn.numel()))[: halves * n * k].view(halves, n, k)
    channel = sizes.get("channel", 0)
    shape = (halves, n, 1) if channel else (halves, math.ceil(n / 128), math.ceil(k / 128))
    scale = torch.exp2(torch.rand(shape, generator=numbers) * 6 - 13 + sizes.get("power", 0))
    if sizes.get("zeros"):
        codes = codes.clone()
        codes[0, :128, 128:384] = 0x80
        codes[:, -1] = 0
        if channel:
            scale[:, -1] = math.nan
        else:
            scale[0, 0, 1:3] = 0
    weight = codes.reshape(halves * n, k).view(torch.float8_e4m3fn)
    rows = scale.flatten(0, 1).to(device)
    return pack_channels(weight, rows, gated) if channel else pack_blocks(weight, rows, gated, split=(1, 1))


def _inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    layer = _layer(case, device)
    numbers = generator(case)
    rows = torch.randn(case.sizes["rows"], layer.k + case.sizes.get("gap", 0), generator=numbers).half()
    return rows.to(device)[:, : layer.k], *layer.arguments


def _moved(case: Case) -> int:
    rows, n, k = (case.sizes[name] for name in ("rows", "n", "k"))
    return 2 * rows * (n + k) + n * k * (2 if case.operator == "dense_w8a16_silu_mul" else 1)


SUBJECTS = (
    Subject(
        operator="dense_w8a16",
        kernels=("dense_w8a16", "dense_expand"),
        inputs=_inputs,
        run=torch.ops.sm70.dense_w8a16,
        reference=reference.dense_w8a16,
        moved_bytes=_moved,
    ),
    Subject(
        operator="dense_w8a16_silu_mul",
        kernels=("dense_w8a16", "dense_expand"),
        inputs=_inputs,
        run=torch.ops.sm70.dense_w8a16_silu_mul,
        reference=reference.dense_w8a16_silu_mul,
        moved_bytes=_moved,
    ),
)
