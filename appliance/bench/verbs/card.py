"""`appliance bench card`: constants of this card measured, every candidate timed, and the model held to both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import whole_file
from appliance.errors import CheckError

if TYPE_CHECKING:
    import argparse

SUMMARY = "measure this card's constants, time every candidate, and hold the kernels' model to it; wants a GPU"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--out", type=Path, default=Path("card.json"), metavar="FILE", help="the record, JSON; a plot beside it"
    )
    parser.add_argument("--ranks", type=int, default=4, choices=(1, 2, 4), help="whose shapes are timed (4)")
    parser.add_argument("--read", action="store_true", help="show a record that is there; measure nothing")


def run(arguments: argparse.Namespace) -> int:
    """Measure, show and draw. Raises CheckError where there is no GPU, or no record to read."""
    from appliance.bench import card, card_plot

    record = card.read(arguments.out) if arguments.read else card.measure(arguments.out, arguments.ranks)
    print(card.text(record))
    drawn = card_plot.predicted_and_timed(record)
    if drawn is None:
        print("no plot: nothing was timed, or matplotlib is not installed", file=sys.stderr)
        return 0
    picture = arguments.out.with_suffix(".svg")
    try:
        whole_file.write(picture, drawn + "\n")
    except OSError as error:
        raise CheckError(f"{picture} cannot be written: {error.strerror}") from error
    print(
        f"plot: {picture}; the model takes these constants: python -m sm70_kernels.predict --constants {arguments.out}"
    )
    return 0
