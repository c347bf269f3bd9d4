"""A card's candidates as a plot: timed over predicted, both in µs and logarithmic, a mark for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bench.plots import COLOURS, svg_of

if TYPE_CHECKING:
    from appliance.bench.card import Record

SIDE = 5.0
"""Inches."""


def predicted_and_timed(record: Record) -> str | None:
    """Return the plot as SVG; None where nothing was timed or matplotlib is not installed."""
    if not record.pairs:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(SIDE, SIDE), layout="constrained")
    axes = figure.add_subplot()
    families = dict.fromkeys(pair.family for pair in record.pairs)
    for family, colour in zip(families, COLOURS * len(families), strict=False):
        chosen = [pair for pair in record.pairs if pair.family == family]
        axes.scatter(
            [pair.predicted for pair in chosen], [pair.timed for pair in chosen], s=14, color=colour, label=family
        )
    both = [value for pair in record.pairs for value in (pair.predicted, pair.timed)]
    ends = [min(both) * 0.9, max(both) * 1.1]
    axes.plot(ends, ends, color="#777777", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="predicted, µs", ylabel="timed, µs", title=record.card)
    axes.legend(frameon=False)
    return svg_of(figure)
