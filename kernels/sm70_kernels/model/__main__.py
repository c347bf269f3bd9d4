"""`python -m sm70_kernels.model`: what the kernels of a decode step would take on a V100-SXM2, predicted."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sm70_kernels.errors import KernelError
from sm70_kernels.model.step import Planned, Sum, step, total

if TYPE_CHECKING:
    from sm70_kernels.model.prediction import Prediction

NOTICE = "Every figure is predicted from machine code; none was measured on a V100. kernels/MODEL.md explains how."


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.model", description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--kernel", metavar="NAME", help="only kernels or layer parts whose name contains NAME")
    parser.add_argument("--m", type=_counts, default=(1, 8, 32), metavar="1,8,32", help="rows of the step's batch")
    parser.add_argument("--tp", type=int, default=4, choices=(1, 2, 4), help="ranks of the tensor-parallel group")
    parser.add_argument("--decode-step", action="store_true", help="print the sums over a whole step, and the targets")
    chosen = parser.parse_args(arguments)
    try:
        found = [
            (tokens, planned, each) for tokens in chosen.m for planned, each in step(tokens, chosen.tp, chosen.kernel)
        ]
    except KernelError as error:
        print(f"sm70_kernels.model: {error}", file=sys.stderr)
        return 1
    if not found:
        parser.error(f"--kernel {chosen.kernel}: no kernel or part of a step has that in its name")
    sums = []
    if chosen.decode_step:
        for tokens in chosen.m:
            rows = [(planned, each) for count, planned, each in found if count == tokens]
            families = dict.fromkeys(planned.family for planned, _ in rows)
            sums += [total(family, tokens, chosen.tp, rows) for family in families]
    if chosen.json:
        print(json.dumps(_record(found, sums), indent=1))
    else:
        print("\n".join([NOTICE, *(_row(*each) for each in found), *(_sum(each) for each in sums)]))
    return 0


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers of at least 1 with commas between them are wanted")
    return counts


def _record(found: list[tuple[int, Planned, Prediction]], sums: list[Sum]) -> dict[str, Any]:
    rows = [
        {"m": tokens, "part": planned.part, "family": planned.family, "launches_a_step": planned.count, **each.record()}
        for tokens, planned, each in found
    ]
    return {"provenance": "predicted", "predictions": rows, "steps": [asdict(each) for each in sums]}


def _row(tokens: int, planned: Planned, each: Prediction) -> str:
    return (
        f"M={tokens:<3} {planned.part:<14} predicted {each.us:8.2f} us x{planned.count:<3} "
        f"predicted bound {each.bound:<9} predicted roofline share {each.roofline_share:4.0%}  {each.shape}"
    )


def _sum(each: Sum) -> str:
    target = f", target {each.target_ms} ms" if each.target_ms else ""
    published = f", published {each.published_ms} ms" if each.published_ms else ""
    return (
        f"M={each.tokens:<3} TP{each.ranks} {each.family:<6} predicted sum {each.kernels_ms:.2f} ms in {each.launches} "
        f"launches, predicted gaps {each.gaps_ms:.2f} ms, predicted floor {each.roofline_ms:.2f} ms{target}{published}"
    )


if __name__ == "__main__":
    sys.exit(main())
