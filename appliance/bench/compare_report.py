"""Comparisons as text, Markdown and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.bench.compare import ALL, shown
from appliance.bench.verdict import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from appliance.bench.compare import Comparison, Difference, Line, Side
    from appliance.bench.verdict import Verdict

HEADER = ("figure", "it", "reference", "unit", "rate", "time")

REFUSED = "refused: --list-differences shows the figures all the same, without a claim"


def text(comparison: Comparison, verdict: Verdict, *, figures: bool) -> str:
    """Return plain text; `figures` off leaves out what must not be compared."""
    lines = [f"{_named(comparison.subject)}", f"  against {_named(comparison.reference)}"]
    if figures and comparison.lines:
        rows = [HEADER, *map(_row, comparison.lines)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
        lines += ["", *("  " + _aligned(row, widths) for row in rows), *_footnote(comparison, "  ")]
    if figures:
        lines += [f"  {each}" for each in _listed(comparison)]
    lines += ["", "Verdict: " + " ".join(verdict.words)]
    lines += ["For orientation: " + " ".join(verdict.orientation)] if figures and verdict.orientation else []
    return "\n".join(lines if figures else [*lines, REFUSED])


def markdown(comparison: Comparison, verdict: Verdict, *, figures: bool) -> str:
    """Return the same as Markdown."""
    lines = [f"## {comparison.subject.name} against {comparison.reference.name}", ""]
    lines += [f"- {_named(side)}" for side in (comparison.subject, comparison.reference)]
    if figures and comparison.lines:
        lines += ["", f"| {' | '.join(HEADER)} |", "| --- | ---: | ---: | --- | ---: | ---: |"]
        lines += [f"| {' | '.join(_row(line))} |" for line in comparison.lines]
        lines += ["", *_footnote(comparison, "")]
    if figures:
        lines += [f"- {each}" for each in _listed(comparison)]
    lines += ["", "**Verdict.** " + " ".join(verdict.words)]
    lines += ["", "For orientation: " + " ".join(verdict.orientation)] if figures and verdict.orientation else []
    return "\n".join(lines if figures else [*lines, "", f"*{REFUSED}*"])


def to_json(pairs: Iterable[tuple[Comparison, Verdict]], wanted: float, *, differing: bool) -> dict[str, Any]:
    """Return all of it for programs; `differing` says whether figures under differing contracts are told."""
    return {
        "schema": 1,
        "wanted_gain": wanted,
        "comparisons": [_record(comparison, verdict, differing=differing) for comparison, verdict in pairs],
    }


def _record(comparison: Comparison, verdict: Verdict, *, differing: bool) -> dict[str, Any]:
    refused = bool(comparison.workload) and not differing
    aim = None if refused or verdict.target is None else verdict.target
    headline = comparison.headline
    return {
        "subject": _side(comparison.subject),
        "reference": _side(comparison.reference),
        "refused": refused,
        "differences": {
            "workload": [_difference(each) for each in comparison.workload],
            "untold": [_difference(each) for each in comparison.untold],
            "system": [_difference(each) for each in comparison.system],
        },
        "figures": [] if refused else [_figure(line) for line in comparison.lines],
        "target": None
        if aim is None or headline is None
        else {"figure": _figure(headline), "limit": aim.limit, "margin": aim.margin, "reached": aim.reached},
        "verdict": {"outcome": verdict.outcome, "passed": verdict.passed, "words": list(verdict.words)},
        "orientation": [] if refused else list(verdict.orientation),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "title": side.title,
        "provenance": side.provenance,
        "screen": side.screen,
        "failed": side.failed,
        "unsound": list(side.unsound),
        "contract": side.contract.model_dump(mode="json"),
    }


def _difference(each: Difference) -> dict[str, Any]:
    return {"part": each.part, "subject": each.subject, "reference": each.reference}


def _figure(line: Line) -> dict[str, Any]:
    quantity, mode, statistic = line.key
    return {
        "quantity": quantity,
        "mode": mode,
        "statistic": statistic or None,
        "subject": line.subject,
        "reference": line.reference,
        "gain": None if line.is_share else line.gain,
        "change": line.change,
        "derived": line.derived,
    }


def _named(side: Side) -> str:
    screen = f" [screen: {side.screen}]" if side.screen else ""
    return f"{side.name}: {side.title} ({side.provenance}){screen}"


def _row(line: Line) -> tuple[str, ...]:
    quantity, mode, statistic = line.key
    name = " ".join(filter(None, (quantity, "" if mode == ALL else f"({mode})", statistic))) + ("*" * line.derived)
    if line.is_share:
        return (name, f"{100 * line.subject:.3f}", f"{100 * line.reference:.3f}", "% of all", "", "")
    time = f"{100 * line.change:+.2f}%" if line.is_time else ""
    return (name, _number(line.subject), _number(line.reference), unit_of(line), f"{100 * line.gain:+.2f}%", time)


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) >= 1 else f"{value:.5f}"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    left = {0, 3}
    cells = [
        cell.ljust(width) if column in left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _footnote(comparison: Comparison, indent: str) -> list[str]:
    starred = any(line.derived for line in comparison.lines)
    return [f"{indent}* computed from what is printed, not printed itself"] if starred else []


def _listed(comparison: Comparison) -> list[str]:
    """The differences of contracts that allow no claim, side by side."""
    return [f"{each.part}: {shown(each.subject)} here, {shown(each.reference)} there" for each in comparison.workload]
