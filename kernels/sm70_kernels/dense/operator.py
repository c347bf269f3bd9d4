"""`torch.ops.sm70.dense_w8a16` and `dense_w8a16_silu_mul`: a dense layer with FP8 weights and FP16 activations.

The number of rows decides inside the operator how it is done, so that one compiled graph serves any batch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

import sm70_kernels.activation.operator  # noqa: F401 - registers silu_and_mul
from sm70_kernels.dense import reference, table
from sm70_kernels.dense.choice import expands, tactic_for
from sm70_kernels.dense.table import BLOCK, COUNTERS, TILE, WORKSPACE_BYTES, Layer
from sm70_kernels.launch import launch
from sm70_kernels.launch.layout import rows_of, sixteen_bytes, stride
from sm70_kernels.launch.outputs import new
from sm70_kernels.torch_library import refused, register

if TYPE_CHECKING:
    from sm70_kernels.dense.table import Tactic

_WORKSPACES: dict[torch.device, torch.Tensor] = {}


def reserve_workspace(device: torch.device) -> torch.Tensor:
    """Return a device's workspace for expanded weights, made on the first call; do so before graphs are captured.

    One serves all layers, and so one stream at a time. It is no argument of the operators, because a compiled graph
    takes what it is given for an input.
    """
    if device not in _WORKSPACES:
        _WORKSPACES[device] = torch.empty(WORKSPACE_BYTES // 2, dtype=torch.float16, device=device)
    return _WORKSPACES[device]


def native(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    counters: torch.Tensor,
    n: int,
    layer: Layer,
    tactic: Tactic,
) -> torch.Tensor:
    """Return the layer's result for rows `x` by one launch of a tactic. Nothing is checked here."""
    rows, k = x.shape
    plan = table.plan(layer, rows, tactic)
    out = new((rows, n), x.dtype, x.device)
    partials = torch.empty(plan.partials, dtype=torch.float32, device=x.device) if plan.partials else 0
    sizes = (rows, n, k, layer.tiles, layer.blocks, stride(x, 0))
    launch(plan.spec, plan.grid, (out, x, weight, scale, partials, counters, *sizes))
    return out


def expanded(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, n: int, layer: Layer, unit: float
) -> torch.Tensor:
    """Return the layer's result for rows `x` through FP16 weights and a library's product. Nothing is checked here."""
    rows, k = x.shape
    halves, width = 2 if layer.gated else 1, layer.blocks * BLOCK
    tiles = layer.tiles // halves
    workspace = reserve_workspace(x.device)
    at_once = min(workspace.numel() // (halves * TILE * width), tiles)
    assert at_once, f"one tile of K={k} is larger than the workspace"
    out = new((rows, halves * n), x.dtype, x.device)
    spec = table.expansion(layer.gated)
    for first in range(0, tiles, at_once):
        count = min(at_once, tiles - first)
        half = count * TILE * width
        grid = (-(-layer.blocks // (spec.threads // 32)), count * halves, 1)
        launch(spec, grid, (workspace, weight, scale, layer.blocks, first * halves, half, 1 / unit))
        start, stop = first * TILE, min((first + count) * TILE, n)
        for number in range(halves):
            matrix = workspace[number * half : (number + 1) * half].view(-1, width)[: stop - start, :k]
            columns = out[:, number * n + start : number * n + stop]
            torch.addmm(columns, x, matrix.T, beta=0, alpha=unit, out=columns)
    return torch.ops.sm70.silu_and_mul(out) if layer.gated else out


def _dense(
    name: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    counters: torch.Tensor,
    n: int,
    k: int,
    unit: float,
) -> torch.Tensor:
    gated = name == "dense_w8a16_silu_mul"
    layer = table.layer_of(n, k, gated)
    if x.dtype != torch.float16 or x.shape[-1] != k:
        raise refused(name, f"x float16[..., {k}]", x)
    if weight.dtype != torch.uint8 or weight.shape != (layer.tiles, layer.blocks, 8, 32, 16):
        raise refused(
            name, f"a weight packed for n={n}, k={k}: uint8[{layer.tiles}, {layer.blocks}, 8, 32, 16]", weight
        )
    if scale.dtype != torch.float32 or scale.shape != (layer.tiles, 2 * layer.blocks + TILE):
        raise refused(name, f"scales float32[{layer.tiles}, {2 * layer.blocks + TILE}]", scale)
    if counters.dtype != torch.int32 or counters.shape != (COUNTERS,):
        raise refused(name, f"counters int32[{COUNTERS}]", counters)
    rows = rows_of(x)
    if not sixteen_bytes((rows,), (k, stride(rows, 0))):
        rows = torch.nn.functional.pad(rows, (0, -k % 8)).clone(memory_format=torch.contiguous_format)
    count = rows.shape[0]
    if not count:
        out = new((0, n), x.dtype, x.device)
    elif expands(layer, count):
        out = expanded(rows, weight, scale, n, layer, unit)
    else:
        out = native(rows, weight, scale, counters, n, layer, tactic_for(layer, count))
    return out if x.ndim == 2 else out.view(*x.shape[:-1], n)


def _fake(
    x: torch.Tensor, _weight: torch.Tensor, _scale: torch.Tensor, _counters: torch.Tensor, n: int, *_: object
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], n))


for _name in ("dense_w8a16", "dense_w8a16_silu_mul"):
    register(
        f"{_name}(Tensor x, Tensor weight, Tensor scale, Tensor counters, int n, int k, float unit) -> Tensor",
        cuda=partial(_dense, _name),
        cpu=getattr(reference, _name),
        fake=_fake,
    )
