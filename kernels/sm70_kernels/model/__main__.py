"""`python -m sm70_kernels.model`: what the kernels of a decode step would take on a V100-SXM2, predicted."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sm70_kernels.errors import KernelError
from sm70_kernels.model.step import Planned, Sum, launches_of, total

if TYPE_CHECKING:
    from sm70_kernels.model.constants import Corner
    from sm70_kernels.model.prediction import Prediction

NOTICE = "Every figure is predicted from machine code; none was measured on a V100. kernels/MODEL.md explains how."


@dataclass(frozen=True, slots=True)
class Row:
    """A launch of a step of `tokens` rows, predicted; with the ends of the range where they were asked for."""

    tokens: int
    planned: Planned
    found: Prediction
    fast: Prediction | None
    slow: Prediction | None


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.model", description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON, with what each resource is used")
    parser.add_argument(
        "--kernel", metavar="NAME", default="", help="only parts, families or kernels with NAME in their name"
    )
    parser.add_argument("--m", type=_counts, default=(1, 8, 32), metavar="1,8,32", help="rows of the step's batch")
    parser.add_argument("--tp", type=int, default=4, choices=(1, 2, 4), help="ranks of the tensor-parallel group")
    parser.add_argument("--range", action="store_true", help="predict both ends of every constant's range too")
    parser.add_argument("--loops", action="store_true", help="print the loops of each kernel and what a trip costs")
    parser.add_argument("--decode-step", action="store_true", help="print the sums over a whole step, and the targets")
    chosen = parser.parse_args(arguments)
    try:
        rows = [row for tokens in chosen.m for row in _rows(tokens, chosen.tp, chosen.kernel, chosen.range)]
    except KernelError as error:
        print(f"sm70_kernels.model: {error}", file=sys.stderr)
        return 1
    if not rows:
        parser.error(f"--kernel {chosen.kernel}: no part, family or kernel of a step has that in its name")
    sums = _sums(rows, chosen.tp) if chosen.decode_step else []
    if chosen.json:
        record = {"provenance": "predicted", "predictions": [_record(row) for row in rows]}
        print(json.dumps({**record, "steps": [{"corner": c, **asdict(each)} for c, each in sums]}, indent=1))
    else:
        lines = [line for row in rows for line in (_line(row), *(_loop_lines(row.found) if chosen.loops else ()))]
        print("\n".join([NOTICE, *lines, *(_sum_line(*each) for each in sums)]))
    return 0


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of at least 1 with commas between them are wanted")
    return counts


def _rows(tokens: int, ranks: int, name: str, ends: bool) -> list[Row]:
    rows = []
    for planned in launches_of(tokens, ranks):
        if any(name in text for text in (planned.part, planned.family, planned.spec.name)):
            fast, slow = (planned.predict(corner) if ends else None for corner in ("fast", "slow"))
            rows.append(Row(tokens, planned, planned.predict(), fast, slow))
    return rows


def _sums(rows: list[Row], ranks: int) -> list[tuple[Corner, Sum]]:
    sums: list[tuple[Corner, Sum]] = []
    for tokens, family in dict.fromkeys((row.tokens, row.planned.family) for row in rows):
        mine = [row for row in rows if (row.tokens, row.planned.family) == (tokens, family)]
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
    )


def _loop_lines(found: Prediction) -> list[str]:
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
        f"M={each.tokens:<3} TP{each.ranks} {each.family:<6} predicted sum {each.kernels_ms:.2f} ms of {each.launches} "
        f"launches{end}, predicted gaps between them {each.gaps_ms:.2f} ms, predicted floor {each.roofline_ms:.2f} ms"
        + "".join(text.format(value) for text, value in known if value and not end)
    )


if __name__ == "__main__":
    sys.exit(main())
