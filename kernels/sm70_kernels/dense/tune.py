"""Time the dense kernels' candidates on the card at hand, on weights that are not in L2, and choose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from sm70_kernels import timing
from sm70_kernels.dense import operator, table
from sm70_kernels.dense.cases import dense_layers
from sm70_kernels.dense.choice import Choices
from sm70_kernels.dense.pack import PackedDense, pack_channels
from sm70_kernels.dense.table import INVARIANT_ROWS, layer_of
from sm70_kernels.tuning.record import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sm70_kernels.dense.table import Tactic
    from sm70_kernels.tuning.record import Record, Sections

BUCKETS = (8, 16, 24, 32, 48, 64)
CROSSING_ROWS = (512, 1024, 2048, 4096, 8192)
NEVER = 2**31 - 1
"""As `expand_from`: the library's product was not faster at any number of rows."""
ALIKE = 1.01
"""Times within this factor of the best are taken for equal; the first in the table's order wins."""


class Shape(NamedTuple):
    """A layer to tune: columns of the result, K, and whether it is a gate and an up."""

    n: int
    k: int
    gated: bool


@dataclass(frozen=True, slots=True)
class Timing:
    """One layer and bucket of rows: each candidate's µs in the table's order, and the index of the one chosen."""

    n: int
    k: int
    gated: bool
    rows: int
    microseconds: tuple[float, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """One layer: µs by number of rows, of the kernel on packed weights and of expansion and library product."""

    n: int
    k: int
    gated: bool
    rows: tuple[int, ...]
    native: tuple[float, ...]
    expanded: tuple[float, ...]
    expand_from: int


ROWS = {"timings": Timing, "crossings": Crossing}
"""What the sections of the tuning record hold."""


def tune(ranks: int, device: torch.device, report: Callable[[str], None]) -> Sections:
    """Return the times of every candidate for the dense layers of a rank of `ranks`. Raises as `tune_layers`."""
    return tune_layers([Shape(*layer) for layer in dense_layers(ranks).values()], device, report)


def tune_layers(shapes: Iterable[Shape], device: torch.device, report: Callable[[str], None]) -> Sections:
    """Return the times of every candidate for every shape. `report` is given a line for each choice.

    Takes about a second a shape on a V100, and the memory of a few of its layers. Raises KernelError when a kernel
    cannot be had, RuntimeError when a candidate's bits differ from those of the table's first.
    """
    timings: list[Timing] = []
    crossings: list[Crossing] = []
    operator.reserve_workspace(device)
    for shape in shapes:
        layers = _layers(shape, device)
        for rows in BUCKETS:
            timings.append(_bucket(shape, layers, rows))
            report(_timed(timings[-1]))
        crossings.append(_crossing(shape, layers))
        report(f"n={shape.n} k={shape.k}: expands from {crossings[-1].expand_from} rows on")
    return {"timings": tuple(timings), "crossings": tuple(crossings)}


def choices(record: Record, card: str) -> Choices:
    """Return what a record chose, for this tree's kernels on `card`.

    Raises ValueError, one line, when it is of another card, of other kernels, or of candidates that the table no longer
    has: time them again.
    """
    check(record, card)
    found = Choices()
    for timed in record.sections["timings"]:
        found.tactics[layer_of(timed.n, timed.k, timed.gated), timed.rows] = _tactic(timed)
    for crossing in record.sections["crossings"]:
        found.expand_from[layer_of(crossing.n, crossing.k, crossing.gated)] = crossing.expand_from
    return found


def _tactic(timed: Timing) -> Tactic:
    known = table.candidates(layer_of(timed.n, timed.k, timed.gated), timed.rows)
    if len(timed.microseconds) != len(known) or not 0 <= timed.chosen < len(known):
        raise ValueError(
            f"the tuning record has {len(timed.microseconds)} candidates for n={timed.n}, k={timed.k}, "
            f"{timed.rows} rows, and the table has {len(known)}"
        )
    return known[timed.chosen]


def first_of_the_best(microseconds: Sequence[float]) -> int:
    """Return the index of the first time that is as good as the best."""
    best = min(microseconds)
    return next(index for index, time in enumerate(microseconds) if time <= best * ALIKE)


def crossing_of(rows: Sequence[int], native: Sequence[float], expanded: Sequence[float]) -> int:
    """Return the least number of rows from which expansion is always faster, or `NEVER`."""
    faster = [other < own for own, other in zip(native, expanded, strict=True)]
    return next((count for index, count in enumerate(rows) if all(faster[index:])), NEVER)


def _layers(shape: Shape, device: torch.device) -> list[PackedDense]:
    """Return enough different layers of a shape that none is in L2 when its turn comes."""
    rows = shape.n * (2 if shape.gated else 1)
    numbers = torch.Generator(device).manual_seed(1)

    def layer() -> PackedDense:
        codes = torch.randint(0, 0x7F, (rows, shape.k), generator=numbers, dtype=torch.uint8, device=device)
        return pack_channels(codes.view(torch.float8_e4m3fn), torch.tensor(2.0**-8), shape.gated)

    return [layer() for _ in range(timing.rotations(rows * shape.k, device))]


def _activations(shape: Shape, rows: int, device: torch.device) -> torch.Tensor:
    numbers = torch.Generator(device).manual_seed(2)
    return torch.randn(rows, shape.k + -shape.k % 8, generator=numbers, device=device).half()


def _bucket(shape: Shape, layers: Sequence[PackedDense], rows: int) -> Timing:
    x = _activations(shape, rows, layers[0].weight.device)
    tactics = table.candidates(layer_of(*shape), rows)
    wanted = _native(shape, tactics[0], x, layers[0])
    times = []
    for tactic in tactics:
        if rows <= INVARIANT_ROWS and not torch.equal(_native(shape, tactic, x, layers[0]), wanted):
            raise RuntimeError(f"{table.specialisation(tactic, shape.gated).name} gives other bits than the first")
        calls = [partial(_native, shape, tactic, x, layer) for layer in layers]
        times.append(round(timing.graph_microseconds(calls), 2))
    return Timing(*shape, rows, tuple(times), first_of_the_best(times))


def _crossing(shape: Shape, layers: Sequence[PackedDense]) -> Crossing:
    layer = layer_of(*shape)
    native, expanded = [], []
    for rows in CROSSING_ROWS:
        x = _activations(shape, rows, layers[0].weight.device)
        tactic = table.candidates(layer, rows)[0]
        own = [partial(_native, shape, tactic, x, each) for each in layers]
        other = [partial(operator.expanded, x, each.weight, each.scale, shape.n, layer, each.unit) for each in layers]
        native.append(round(timing.graph_microseconds(own, launches=8, replays=3), 1))
        expanded.append(round(timing.graph_microseconds(other, launches=8, replays=3), 1))
    found = crossing_of(CROSSING_ROWS, native, expanded)
    return Crossing(*shape, CROSSING_ROWS, tuple(native), tuple(expanded), found)


def _native(shape: Shape, tactic: Tactic, x: torch.Tensor, layer: PackedDense) -> torch.Tensor:
    return operator.native(x, layer.weight, layer.scale, layer.counters, shape.n, layer_of(*shape), tactic)


def _timed(found: Timing) -> str:
    times = ", ".join(f"{time:.1f}" for time in found.microseconds)
    return f"n={found.n} k={found.k} rows={found.rows}: {times} µs, candidate {found.chosen} chosen"
