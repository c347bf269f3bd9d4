"""The tuning record: what was timed on a card, as JSON, and the choices that may be taken from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from sm70_kernels.heuristics.dense import Tactic, candidates, layer_of
from sm70_kernels.registry import source_hash
from sm70_kernels.tuning.choice import Choices

SCHEMA = 1


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


@dataclass(frozen=True, slots=True)
class Record:
    """What was timed on a `card`, with the kernels of `source_hash`."""

    card: str
    source_hash: str
    timings: tuple[Timing, ...]
    crossings: tuple[Crossing, ...]


def dump(record: Record) -> str:
    """Return the record as JSON text."""
    return json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1) + "\n"


def parse(text: str) -> Record:
    """Return the record that `dump` wrote. Raises ValueError, one line, when it is none."""
    try:
        found: dict[str, Any] = json.loads(text)
        if found.pop("schema") != SCHEMA:
            raise ValueError(f"not a tuning record of schema {SCHEMA}")
        timings = tuple(Timing(**_tuples(each)) for each in found.pop("timings"))
        crossings = tuple(Crossing(**_tuples(each)) for each in found.pop("crossings"))
        return Record(timings=timings, crossings=crossings, **found)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a tuning record ({type(error).__name__}: {error})") from error


def choices(record: Record, card: str) -> Choices:
    """Return what a record chose, for this tree's kernels on `card`.

    Raises ValueError, one line, when it is of another card, of other kernels, or of candidates that the table no longer
    has: time them again.
    """
    if record.card != card:
        raise ValueError(f"the tuning record is of a {record.card}, and this is a {card}")
    if record.source_hash != source_hash():
        raise ValueError(
            f"the tuning record is of kernels {record.source_hash[:12]}…, and these are {source_hash()[:12]}…"
        )
    found = Choices()
    for timing in record.timings:
        layer = layer_of(timing.n, timing.k, timing.gated)
        found.tactics[layer, timing.rows] = _tactic(timing)
    for crossing in record.crossings:
        found.expand_from[layer_of(crossing.n, crossing.k, crossing.gated)] = crossing.expand_from
    return found


def _tactic(timing: Timing) -> Tactic:
    known = candidates(layer_of(timing.n, timing.k, timing.gated), timing.rows)
    if len(timing.microseconds) != len(known) or not 0 <= timing.chosen < len(known):
        raise ValueError(
            f"the tuning record has {len(timing.microseconds)} candidates for n={timing.n}, k={timing.k}, "
            f"{timing.rows} rows, and the table has {len(known)}"
        )
    return known[timing.chosen]


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
