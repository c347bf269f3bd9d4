"""Time the dense kernels' candidates on the card at hand, on weights that are not in L2, and choose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from sm70_kernels import timing
from sm70_kernels.build import store
from sm70_kernels.dense import alternatives, operator, predict, table
from sm70_kernels.dense.alternatives import parts
from sm70_kernels.dense.cases import dense_layers
from sm70_kernels.dense.choice import Choices
from sm70_kernels.dense.pack import PackedDense, pack_channels
from sm70_kernels.dense.table import Layer, Tactic, layer_of
from sm70_kernels.errors import KernelError
from sm70_kernels.launch import workspace
from sm70_kernels.tuning.alike import first_of_the_best
from sm70_kernels.tuning.record import check
from sm70_kernels.tuning.trial import Candidate, Trial, microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sm70_kernels.registry import Specialisation
    from sm70_kernels.tuning.record import Record, Sections

BUCKETS = (8, 16, 24, 32, 48, 64)
CROSSING_ROWS = (512, 1024, 2048, 4096, 8192)
NEVER = 2**31 - 1
"""As `expand_from`: the library's product was not faster at any number of rows."""


class Shape(NamedTuple):
    """A layer to tune: columns of the result, K, and whether it is a gate and an up."""

    n: int
    k: int
    gated: bool


@dataclass(frozen=True, slots=True)
class Timing:
    """One layer and bucket of rows: each tactic tried (`table.Tactic`), its µs, and the index of the one chosen."""

    n: int
    k: int
    gated: bool
    rows: int
    tactics: tuple[tuple[int, ...], ...]
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


def tune(ranks: int, device: torch.device, report: Callable[[str], None], *, compiling: bool = False) -> Sections:
    """Return the times of every candidate for the dense layers of a rank of `ranks`. Raises as `tune_layers`."""
    shapes = [Shape(*layer) for layer in dense_layers(ranks).values()]
    return tune_layers(shapes, device, report, compiling=compiling)


def trials(ranks: int, device: torch.device) -> Iterator[Trial]:
    """Yield a trial for each dense layer of a rank and bucket of rows, of the tactics that are built ahead."""
    workspace.reserve(device)
    for layer in dense_layers(ranks).values():
        shape = Shape(*layer)
        layers = _layers(shape, device)
        for rows in BUCKETS:
            yield _trial(shape, layers, rows, alternatives.built(layer_of(*shape), rows))


def tune_layers(
    shapes: Iterable[Shape], device: torch.device, report: Callable[[str], None], *, compiling: bool = False
) -> Sections:
    """Return the times of every candidate for every shape. `report` is given a line for each choice.

    Tactics of the whole table that fit a layer are tried, with `compiling` also those around the table's choice. Takes
    some ten seconds a shape on a V100 without compiling (an estimate), and the memory of a few of its layers. Raises
    KernelError when a kernel that is built ahead cannot be had, RuntimeError when two tactics that cut K into as many
    parts give different bits.
    """
    timings: list[Timing] = []
    crossings: list[Crossing] = []
    workspace.reserve(device)
    for shape in shapes:
        layers = _layers(shape, device)
        tried = {}
        for rows in BUCKETS:
            trial = _trial(shape, layers, rows, _candidates(layer_of(*shape), rows, compiling, report))
            tried[rows] = [(_tactic_of(each.spec), time) for each, time in _times(trial)]
        for timing_ in _chosen(shape, tried):
            timings.append(timing_)
            report(_timed(timing_))
        crossings.append(_crossing(shape, layers))
        report(f"n={shape.n} k={shape.k}: expands from {crossings[-1].expand_from} rows on")
    return {"timings": tuple(timings), "crossings": tuple(crossings)}


def choices(record: Record, card: str) -> Choices:
    """Return what a record chose, for this tree's kernels on `card`.

    Raises ValueError, one line, when it is of another card, of other kernels, of tactics that a layer cannot have, or
    cuts K of one layer into other numbers of parts for other rows: time them again.
    """
    check(record, card)
    found = Choices()
    cuts: dict[Layer, dict[int, int]] = {}
    for timed in record.sections["timings"]:
        layer, tactic = layer_of(timed.n, timed.k, timed.gated), _tactic(timed)
        found.tactics[layer, timed.rows] = tactic
        cuts.setdefault(layer, {})[timed.rows] = parts(tactic)
    for layer, by_rows in cuts.items():
        # A bucket that was not timed is served by the table.
        every = {rows: by_rows.get(rows, parts(table.candidates(layer, rows)[0])) for rows in BUCKETS}
        if len(set(every.values())) > 1 and every != _cuts_of_the_table(layer):
            raise ValueError(
                f"the tuning record cuts K of a layer of {layer.tiles} tiles into {every} parts by rows: a row's bits "
                "would hang on the batch"
            )
    for crossing in record.sections["crossings"]:
        found.expand_from[layer_of(crossing.n, crossing.k, crossing.gated)] = crossing.expand_from
    return found


def _cuts_of_the_table(layer: Layer) -> dict[int, int]:
    return {rows: parts(table.candidates(layer, rows)[0]) for rows in BUCKETS}


def _tactic(timed: Timing) -> Tactic:
    layer = layer_of(timed.n, timed.k, timed.gated)
    about = f"for n={timed.n}, k={timed.k}, {timed.rows} rows"
    if len(timed.microseconds) != len(timed.tactics) or not 0 <= timed.chosen < len(timed.tactics):
        raise ValueError(
            f"the tuning record has {len(timed.microseconds)} times of {len(timed.tactics)} tactics {about}, and "
            f"chose number {timed.chosen}"
        )
    chosen = timed.tactics[timed.chosen]
    if len(chosen) != len(Tactic._fields) or not alternatives.fits(layer, timed.rows, Tactic(*chosen)):
        raise ValueError(f"the tuning record chose {list(chosen)} {about}, which that layer cannot have")
    return Tactic(*chosen)


def _chosen(shape: Shape, tried: Mapping[int, Sequence[tuple[Tactic, float]]]) -> Iterator[Timing]:
    """Choose one number of K parts for all buckets of a layer, then a tactic with it for each."""
    cuts = dict.fromkeys(parts(tactic) for candidates in tried.values() for tactic, _ in candidates)
    sums = {}
    for cut in cuts:
        best = [[time for tactic, time in each if parts(tactic) == cut] for each in tried.values()]
        if all(best):
            sums[cut] = sum(map(min, best))
    # The first is the table's own, at 8 rows.
    order = list(sums)
    cut = order[first_of_the_best([sums[each] for each in order])]
    for rows, candidates in tried.items():
        eligible = [index for index, (tactic, _) in enumerate(candidates) if parts(tactic) == cut]
        chosen = eligible[first_of_the_best([candidates[index][1] for index in eligible])]
        tactics = tuple(tuple(tactic) for tactic, _ in candidates)
        yield Timing(*shape, rows, tactics, tuple(time for _, time in candidates), chosen)


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


def _candidates(layer: Layer, rows: int, compiling: bool, report: Callable[[str], None]) -> tuple[Tactic, ...]:
    ahead = alternatives.built(layer, rows)
    if not compiling:
        return ahead
    found = list(ahead)
    for tactic in alternatives.around(layer, rows)[len(ahead) :]:
        spec = table.specialisation(tactic, layer.gated)
        try:
            store.load(spec, "cubin")
        except KernelError as error:
            report(f"{spec.name} is not tried: {error}")
        else:
            found.append(tactic)
    return tuple(found)


def _trial(shape: Shape, layers: Sequence[PackedDense], rows: int, tactics: Sequence[Tactic]) -> Trial:
    x = _activations(shape, rows, layers[0].weight.device)
    layer = layer_of(*shape)
    candidates = []
    for tactic in tactics:
        plan = table.plan(layer, rows, tactic)
        calls = [partial(_native, shape, tactic, x, each) for each in layers]
        launch = predict.native(plan, layer, rows, shape.n, shape.k)
        candidates.append(Candidate(plan.spec, launch, calls, parts(tactic)))
    kind = " gated" if shape.gated else ""
    return Trial("dense", f"n={shape.n} k={shape.k}{kind} rows={rows}", tuple(candidates))


def _times(trial: Trial) -> Iterator[tuple[Candidate, float]]:
    return zip(trial.candidates, microseconds(trial), strict=True)


def _tactic_of(spec: Specialisation) -> Tactic:
    return Tactic(*(spec.constants[name.upper()] for name in Tactic._fields))


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
    tactic = Tactic(*found.tactics[found.chosen])
    return f"n={found.n} k={found.k} rows={found.rows}: {times} µs, candidate {found.chosen} chosen, {tactic}"
