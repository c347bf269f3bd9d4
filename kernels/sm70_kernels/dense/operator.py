"""`torch.ops.sm70.dense_w8a16` and `dense_w8a16_silu_mul`: a dense layer with FP8 weights and FP16 activations.

The number of rows decides inside the operator how it is done, so that one compiled graph serves any batch.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import torch

from sm70_kernels import dispatch
from sm70_kernels.dense import reference, table
from sm70_kernels.dense.choice import expands, tactic_for
from sm70_kernels.dense.table import BLOCK, COUNTERS, GATED_ROWS, TILE, Layer
from sm70_kernels.launch import launch
from sm70_kernels.launch.layout import packed, rows_of, sixteen_bytes, stride
from sm70_kernels.launch.outputs import new
from sm70_kernels.launch.turns import in_turn
from sm70_kernels.launch.workspace import reserve
from sm70_kernels.torch_library import laid_out, refused, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm70_kernels.dense.table import Tactic


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
    arguments = (out, x, weight, scale, partials, counters, *sizes)
    if not plan.partials:
        launch(plan.spec, plan.grid, arguments)
        return out
    # Only blocks that share a tile count themselves.
    with in_turn(counters):
        launch(plan.spec, plan.grid, arguments)
    return out


def expanded(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, n: int, layer: Layer, unit: float
) -> torch.Tensor:
    """Return the layer's result for rows `x` through FP16 weights and a library's product. Nothing is checked here."""
    rows, k = x.shape
    halves, width = 2 if layer.gated else 1, layer.blocks * BLOCK
    tiles = layer.tiles // halves
    workspace = reserve(x.device).view(torch.float16)
    at_once = min(workspace.numel() // (halves * TILE * width), tiles)
    assert at_once, f"one tile of K={k} is larger than the workspace"
    out = new((rows, n), x.dtype, x.device)
    spec = table.expansion(layer.gated)
    with in_turn(workspace), _full_sums():
        for first in range(0, tiles, at_once):
            count = min(at_once, tiles - first)
            half = count * TILE * width
            grid = (-(-layer.blocks // (spec.threads // 32)), count * halves, 1)
            launch(spec, grid, (workspace, weight, scale, layer.blocks, first * halves, half, 1 / unit))
            start, stop = first * TILE, min((first + count) * TILE, n)
            matrices = [
                workspace[number * half : (number + 1) * half].view(-1, width)[: stop - start, :k]
                for number in range(halves)
            ]
            if layer.gated:
                _gated_product(x, matrices[0], matrices[1], unit, out[:, start:stop])
            else:
                torch.addmm(out[:, start:stop], x, matrices[0].T, beta=0, alpha=unit, out=out[:, start:stop])
    return out


def _gated_product(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, unit: float, out: torch.Tensor) -> None:
    """Write silu(unit · x · gateᵀ) · (unit · x · upᵀ) to `out`, rounded once.

    Both products stay FP32 until then, as in the kernel: a gate below FP16's range is -inf there, and silu(-inf) is not
    a number where it should be 0; an up beyond the range makes infinity of 0.
    """
    for start in range(0, x.shape[0], GATED_ROWS):
        rows = x[start : start + GATED_ROWS]
        opened, wide = (_single(rows, matrix) for matrix in (gate, up))
        if unit != 1:
            opened *= unit
            wide *= unit
        torch.nn.functional.silu(opened, inplace=True)
        torch.mul(opened, wide, out=out[start : start + GATED_ROWS])


def _single(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return x · matrixᵀ of FP16 tensors as FP32."""
    if x.device.type == "cpu":
        return x.float() @ matrix.T.float()
    return torch.mm(x, matrix.T, out_dtype=torch.float32)


@contextlib.contextmanager
def _full_sums() -> Iterator[None]:
    """Let no library product inside add in FP16, whatever the process has allowed; then allow the same again.

    The settings are the process's: another thread's products may meanwhile be more exact, never less.
    """
    settings = torch.backends.cuda.matmul
    reduced = settings.allow_fp16_reduced_precision_reduction, settings.allow_fp16_reduced_precision_reduction_split_k
    accumulated = settings.allow_fp16_accumulation
    settings.allow_fp16_reduced_precision_reduction = (False, reduced[1])
    settings.allow_fp16_accumulation = False
    try:
        yield
    finally:
        settings.allow_fp16_reduced_precision_reduction = reduced
        settings.allow_fp16_accumulation = accumulated


def _check(
    name: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    counters: torch.Tensor,
    n: int,
    k: int,
    layer: Layer,
) -> None:
    if x.dtype != torch.float16 or x.shape[-1] != k:
        raise refused(name, f"x float16[..., {k}]", x)
    if weight.dtype != torch.uint8 or weight.shape != (layer.tiles, layer.blocks, 8, 32, 16):
        raise refused(
            name, f"a weight packed for n={n}, k={k}: uint8[{layer.tiles}, {layer.blocks}, 8, 32, 16]", weight
        )
    if not packed(weight):
        raise refused(name, "a packed weight on a 16-byte boundary", laid_out(weight))
    if scale.dtype != torch.float32 or scale.shape != (layer.tiles, 2 * layer.blocks + TILE):
        raise refused(name, f"scales float32[{layer.tiles}, {2 * layer.blocks + TILE}]", scale)
    if not scale.is_contiguous():
        raise refused(name, "packed scales", laid_out(scale))
    if counters.dtype != torch.int32 or counters.shape != (COUNTERS,):
        raise refused(name, f"counters int32[{COUNTERS}]", counters)
    if not counters.is_contiguous():
        raise refused(name, "packed counters", laid_out(counters))


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
    _check(name, x, weight, scale, counters, n, k, layer)
    rows = rows_of(x)
    if not sixteen_bytes((rows,), (k, stride(rows, 0))):
        rows = torch.nn.functional.pad(rows, (0, -k % 8)).clone(memory_format=torch.contiguous_format)
    count = rows.shape[0]
    if not count:
        out = new((0, n), x.dtype, x.device)
    elif expands(layer, count):
        dispatch.count(name, dispatch.EXPANSION, count)
        out = expanded(rows, weight, scale, n, layer, unit)
    else:
        dispatch.count(name, dispatch.KERNEL, count)
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
        counts_itself=True,
    )
