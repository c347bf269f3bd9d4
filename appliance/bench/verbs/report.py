"""`appliance bench report`: results as one page and one Markdown text, with what the kernels are predicted to take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.bench import report
from appliance.bench import result as results
from appliance.bench.output import to_json, write, write_page
from appliance.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

SUMMARY = "Put results together: Markdown, and one page with plots over contexts and concurrencies."

MODEL_S = 600.0
"""Bound of the kernels' prediction; it takes half a minute for one batch size on two cores."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's options."""
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="JSON that a measuring verb wrote")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the text there instead of printing it")
    parser.add_argument("--json", action="store_true", help="print the results in JSON instead of Markdown")
    parser.add_argument(
        "--roofline", action="store_true", help="ask the kernels' model for a plot; takes minutes, needs built kernels"
    )
    parser.add_argument(
        "--roofline-file", type=Path, metavar="FILE", help="what `python -m sm70_kernels.predict --json` printed"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the report. Returns 0. Raises ConfigurationError for a file that is no result."""
    if arguments.html is None and (arguments.roofline or arguments.roofline_file is not None):
        raise ConfigurationError("--roofline and --roofline-file are for the page; name its file with --html")
    read = [results.read(path) for path in arguments.results]
    text = report.markdown(read)
    if arguments.html is not None:
        model, notes = roofline(arguments.roofline_file, ask=arguments.roofline)
        write_page(arguments.html, read, model, notes)
    if arguments.markdown is not None:
        write(arguments.markdown, text)
    if arguments.json:
        print(to_json(read))
    elif arguments.markdown is None:
        print(text)
    return 0


def roofline(file: Path | None, *, ask: bool) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the kernels' predictions, and why there are none. Raises ConfigurationError for a wrong file."""
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--roofline-file {file}: cannot be read ({error})") from None
        return _parsed(text, f"--roofline-file {file}"), []
    if not ask:
        return None, []
    command = [sys.executable, "-m", "sm70_kernels.predict", "--json", "--m", "32"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MODEL_S)
    except subprocess.TimeoutExpired:
        return None, [f"No roofline: the kernels' model has not answered within {MODEL_S:.0f} s."]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return None, [f"No roofline: the kernels' model ended with status {done.returncode}: {last}"]
    return _parsed(done.stdout, "the kernels' model"), []


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        model = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{where}: no JSON ({error}); wanted the output of the kernels' model") from None
    if not isinstance(model, dict) or not isinstance(model.get("predictions"), list):
        raise ConfigurationError(f"{where}: no predictions in it; wanted the output of the kernels' model")
    if not all(map(_drawable, model["predictions"])):
        raise ConfigurationError(f"{where}: a prediction lacks what is drawn; wanted the output of the kernels' model")
    return model


def _drawable(row: object) -> bool:
    """Whether a row is one of the model's: of its figures, these stand in the plot."""
    if not isinstance(row, dict):
        return False
    numbers = (row.get(name) for name in ("m", "launches_a_step", "us", "roofline_us"))
    return all(isinstance(number, int | float) for number in numbers) and {"part", "bound"} <= row.keys()
