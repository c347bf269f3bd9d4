"""`python -m sm70_kernels.predict`: what the kernels of a decode step would take on a V100-SXM2, predicted."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from sm70_kernels.errors import KernelError
from sm70_kernels.predict.constants import adopt, described, measured
from sm70_kernels.predict.prediction import Prediction
from sm70_kernels.predict.step import CONTAINS, LACKS, Sum, launches_of, total
from sm70_kernels.predict.work import Found, Head, Path, Work

if TYPE_CHECKING:
    from sm70_kernels.predict.constants import Corner

NOTICE = (
    "Every figure is predicted; none was measured on a V100. Our kernels: from machine code. The library's: its bytes "
    "and products at rates published by others. kernels/MODEL.md explains how."
)


@dataclass(frozen=True, slots=True)
class Row:
    """A launch of a step of `tokens` rows, predicted; with the ends of the range where they were asked for."""

    tokens: int
    planned: Work
    found: Found
    fast: Found | None
    slow: Found | None


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.predict", description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON, with what each resource is used")
    parser.add_argument(
        "--kernel",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        default=[""],
        help="only parts, families or kernels with one of these in their name",
    )
    parser.add_argument("--m", type=_counts, default=(1, 8, 32), metavar="1,8,32", help="rows of the step's batch")
    parser.add_argument("--tp", type=int, default=4, choices=(1, 2, 4), help="ranks of the tensor-parallel group")
    parser.add_argument(
        "--logits", type=_count, metavar="N", help="rows that are sampled from (all of --m; 1 where one prompt ends)"
    )
    parser.add_argument("--head", default="fp16", choices=get_args(Head), help="weights of the output head")
    parser.add_argument(
        "--dense", choices=get_args(Path), help="how dense layers are done, whatever the table says for that many rows"
    )
    parser.add_argument(
        "--constants", type=pathlib.Path, metavar="FILE", help="take what a record of `appliance bench card` measured"
    )
    parser.add_argument(
        "--set", type=_changes, default={}, metavar="NAME=VALUE,...", help="take these figures for the model's"
    )
    parser.add_argument("--range", action="store_true", help="predict both ends of every constant's range too")
    parser.add_argument("--loops", action="store_true", help="print the loops of each kernel and what a trip costs")
    parser.add_argument("--decode-step", action="store_true", help="print the sums over a whole step, and the targets")
    chosen = parser.parse_args(arguments)
    try:
        adopt(_figures(chosen.constants, chosen.set))
        rows = [row for tokens in chosen.m for row in _rows(tokens, chosen)]
    except (KernelError, ValueError, OSError) as error:
        print(f"sm70_kernels.predict: {error}", file=sys.stderr)
        return 1
    if not rows:
        parser.error(f"--kernel {','.join(chosen.kernel)}: no part, family or kernel of a step has that in its name")
    sums = _sums(rows, chosen.tp, chosen.kernel == [""]) if chosen.decode_step else []
    if chosen.json:
        record: dict[str, Any] = {"provenance": "predicted", "predictions": [_record(row) for row in rows]}
        steps = [{"corner": c, **asdict(each)} for c, each in sums]
        record |= {"steps": steps, "contains": CONTAINS, "lacks": LACKS, "machine": described()}
        print(json.dumps(record, indent=1))
    else:
        lines = [line for row in rows for line in (_line(row), *(_loop_lines(row.found) if chosen.loops else ()))]
        lines += [_sum_line(*each) for each in sums]
        if any(each.family == "all" for _, each in sums):
            lines.append(f"A predicted sum of all contains: {'; '.join(CONTAINS)}. It lacks: {'; '.join(LACKS)}.")
        print("\n".join([NOTICE, *lines]))
    return 0


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of at least 1 with commas between them are wanted")
    return counts


def _changes(text: str) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in (part.split("=") for part in text.split(","))}
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=VALUE with commas between them is wanted") from error


def _figures(record: pathlib.Path | None, changes: dict[str, float]) -> dict[str, dict[str, Any]]:
    figures = {} if record is None else measured(record.read_text(encoding="utf-8"))
    given = {name: {"value": value, "slow": value, "fast": value} for name, value in changes.items()}
    return figures | {name: row | {"source": "given to the command"} for name, row in given.items()}


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: one number of at least 1 is wanted")
    return int(text)


def _rows(tokens: int, chosen: argparse.Namespace) -> list[Row]:
    rows = []
    for planned in launches_of(tokens, chosen.tp, chosen.logits, chosen.head, chosen.dense):
        texts = (planned.part, planned.family, planned.name)
        if any(name in text for name in chosen.kernel for text in texts):
            fast, slow = (planned.predict(corner) if chosen.range else None for corner in _ENDS)
            rows.append(Row(tokens, planned, planned.predict(), fast, slow))
    return rows


_ENDS: tuple[Corner, Corner] = ("fast", "slow")


def _sums(rows: list[Row], ranks: int, complete: bool) -> list[tuple[Corner, Sum]]:
    sums: list[tuple[Corner, Sum]] = []
    families = list(dict.fromkeys(row.planned.family for row in rows))
    # All of a step is summed where all of it was asked for.
    families += ["all"] if complete else []
    for tokens, family in product(dict.fromkeys(row.tokens for row in rows), families):
        mine = [row for row in rows if row.tokens == tokens and family in (row.planned.family, "all")]
        sums.append(("expected", total(family, tokens, ranks, [(row.planned, row.found) for row in mine])))
        fast = [(row.planned, row.fast) for row in mine if row.fast]
        slow = [(row.planned, row.slow) for row in mine if row.slow]
        if fast and slow:
            sums.append(("fast", total(family, tokens, ranks, fast, "fast")))
            sums.append(("slow", total(family, tokens, ranks, slow, "slow")))
    return sums


def _record(row: Row) -> dict[str, Any]:
    planned = row.planned
    record = {"m": row.tokens, "part": planned.part, "family": planned.family, "launches_a_step": planned.count}
    ends = {} if not (row.fast and row.slow) else {"us_fast": round(row.fast.us, 3), "us_slow": round(row.slow.us, 3)}
    return {**record, **row.found.record(), **ends}


def _line(row: Row) -> str:
    found = row.found
    ends = f" ({row.fast.us:.1f} to {row.slow.us:.1f})" if row.fast and row.slow else ""
    return (
        f"M={row.tokens:<3} {row.planned.part:<14} predicted {found.us:7.2f} us{ends} x{row.planned.count:<3} "
        f"predicted bound {found.bound:<9} predicted {found.roofline_share:4.0%} of the roofline  {found.shape}"
        + ("" if isinstance(found, Prediction) else f"  ({found.kernel}: {found.basis})")
    )


def _loop_lines(found: Found) -> list[str]:
    if not isinstance(found, Prediction):
        return []
    return [
        f"      {'  ' * loop.depth}loop {loop.first:#06x}-{loop.last:#06x} predicted {loop.trips:g} trips of "
        f"{loop.issued / loop.trips:.0f} instructions; predicted cycles a trip: "
        + ", ".join(f"{pipe} {cycles:.0f}" for pipe, cycles in loop.pipes.items())
        for loop in found.loops
    ]


def _sum_line(corner: Corner, each: Sum) -> str:
    known = ((", target {} ms", each.target_ms), (", published {} ms", each.published_ms))
    end = "" if corner == "expected" else f", every constant at its {corner} end"
    return (
        f"M={each.tokens:<4} TP{each.ranks} {each.family:<6} predicted sum {each.kernels_ms:.2f} ms of {each.launches} "
        f"launches{end}, predicted gaps between them {each.gaps_ms:.2f} ms, predicted floor {each.roofline_ms:.2f} ms"
        + "".join(text.format(value) for text, value in known if value and not end)
    )


if __name__ == "__main__":
    sys.exit(main())
