"""A card's candidates as a plot: timed over predicted, both in µs and logarithmic, a mark for each."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from appliance.bench.plots import COLOURS, svg

if TYPE_CHECKING:
    from appliance.bench.card import Record

HEIGHT = 6.0
"""Inches."""


def predicted_and_timed(record: Record) -> str | None:
    """Return the plot as an SVG document; None where nothing was timed, or matplotlib is not installed."""
    if not record.pairs or importlib.util.find_spec("matplotlib") is None:
        return None
    families = list(dict.fromkeys(pair.family for pair in record.pairs))

    def draw(axes: Any) -> None:  # noqa: ANN401 - matplotlib's axes
        for number, family in enumerate(families):
            chosen = [pair for pair in record.pairs if pair.family == family]
            predicted, timed = [pair.predicted for pair in chosen], [pair.timed for pair in chosen]
            axes.scatter(predicted, timed, s=14, color=COLOURS[number % len(COLOURS)], label=family)
        both = [value for pair in record.pairs for value in (pair.predicted, pair.timed)]
        ends = [min(both) * 0.9, max(both) * 1.1]
        axes.plot(ends, ends, color="#777777", linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("predicted, µs")
        axes.set_ylabel("timed, µs")
        axes.legend(frameon=False, fontsize=8)

    drawn = svg("card", f"Timed and predicted on a {record.card}", draw, height=HEIGHT)
    return drawn.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1) if "xmlns=" not in drawn else drawn
