"""A card's own record, read and told: constants beside the model's, order and error by family, what it would change.

`python -m sm70_kernels.card` writes it, in a process of its own: it needs torch, and this does not.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "sm70_kernels"
TIMEOUT_S = 900.0
"""Two minutes are wanted; a card that emulates instructions, or a cold compiler cache, takes longer."""


@dataclass(frozen=True)
class Answer:
    """One constant: the model's value and the one found, None where none explains what was measured (`note`)."""

    constant: str
    about: str
    own: float
    value: float | None
    note: str


@dataclass(frozen=True)
class Agreement:
    """One family's candidates; ranks correlate in `order` (None: too few), errors are predicted over timed less one."""

    family: str
    candidates: int
    order: float | None
    error: float
    least_error: float
    greatest_error: float
    lost: float


@dataclass(frozen=True)
class Pair:
    """One candidate of a family: µs predicted with the model's own constants, and µs timed."""

    family: str
    predicted: float
    timed: float


@dataclass(frozen=True)
class Record:
    """What `python -m sm70_kernels.card` found on a card."""

    card: str
    capability: str
    clock_ghz: float
    empty_us: float
    reads: tuple[tuple[int, float], ...]
    answers: tuple[Answer, ...]
    agreement: tuple[Agreement, ...]
    agreement_with_card: tuple[Agreement, ...]
    pairs: tuple[Pair, ...]
    changes: tuple[str, ...]


def measure(out: Path, ranks: int) -> Record:
    """Measure this machine's card, write the record to `out` and return it. Raises CheckError, one line."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise CheckError(f"the Python package {PACKAGE} is not installed here; measure where the engine is")
    command = (sys.executable, "-m", f"{PACKAGE}.card", "--out", str(out), "--ranks", str(ranks))
    try:
        # Its progress goes to the terminal as it comes.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CheckError(
            f"the card has not been measured after {TIMEOUT_S:g} s; is something else running on it?"
        ) from error
    if done.returncode:
        raise CheckError(f"the card could not be measured (status {done.returncode}); the line above says why")
    return read(out)


def read(path: Path) -> Record:
    """Read a record. Raises CheckError, one line, for what is none."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CheckError(f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise CheckError(f"{path} is no record of a card ({type(error).__name__}: {error})") from error


def parse(found: dict[str, Any]) -> Record:
    """Read a record's JSON. Raises KeyError, TypeError or ValueError for what is none."""

    def agreement(rows: list[dict[str, Any]]) -> tuple[Agreement, ...]:
        return tuple(Agreement(**{name: row[name] for name in Agreement.__dataclass_fields__}) for row in rows)

    return Record(
        card=str(found["card"]),
        capability=str(found["capability"]),
        clock_ghz=float(found["clock_ghz"]),
        empty_us=float(found["empty_us"]),
        reads=tuple((int(row["bytes_in_flight"]), float(row["gb_s"])) for row in found["reads"]),
        answers=tuple(
            Answer(row["constant"], row["about"], row["own"], row["value"], row["note"]) for row in found["answers"]
        ),
        agreement=agreement(found["agreement"]),
        agreement_with_card=agreement(found["agreement_with_card"]),
        pairs=tuple(
            Pair(trial["family"], float(predicted), float(timed))
            for trial in found["trials"]
            for predicted, timed in zip(trial["predicted"], trial["microseconds"], strict=True)
        ),
        changes=tuple(map(str, found["changes"])),
    )


def text(record: Record) -> str:
    """Return what a record says, for a terminal."""
    return "\n".join(_lines(record))


def _lines(record: Record) -> Iterator[str]:
    yield f"measured on a {record.card} (compute capability {record.capability}), clock {record.clock_ghz:.3f} GHz"
    yield f"from one empty kernel to the next in a graph: {record.empty_us:.2f} µs"
    yield "reading memory: " + ", ".join(
        f"{rate:.0f} GB/s with {held // 1024} KiB an SM" for held, rate in record.reads
    )
    yield ""
    yield f"{'constant':18} {'model':>9} {'card':>9}"
    for answer in record.answers:
        found = "-" if answer.value is None else f"{answer.value:.4g}"
        yield f"{answer.constant:18} {answer.own:>9.4g} {found:>9}  {answer.note or answer.about}"
    for rows, how in ((record.agreement, "the model's constants"), (record.agreement_with_card, "the card's")):
        yield ""
        yield f"predicted against timed, with {how}:"
        for row in rows:
            order = "too few to rank" if row.order is None else f"rank correlation {row.order:.2f}"
            yield (
                f"  {row.family}: {row.candidates} candidates, {order}, error {row.error:+.1%} "
                f"({row.least_error:+.1%} to {row.greatest_error:+.1%}); its choices lose at most {row.lost:.1%}"
            )
    yield ""
    yield "what it would change:" if record.changes else "it would change no choice of the tables"
    yield from (f"  {line}" for line in record.changes)
