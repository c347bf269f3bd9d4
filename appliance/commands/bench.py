"""`appliance bench`: finds the benchmark and imports only its module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from appliance.cli import Parser

if TYPE_CHECKING:
    import argparse

SUMMARY = "measure the engine, predict it, or compare a result with a reference"

VERBS: dict[str, str] = {
    "decode": "stable decode steps of the running engine, out of its step record",
    "stream": "streams of the running engine, their tokens counted by ID",
    "serve": "the 32K serving contract on vLLM's own benchmark, or a screen of it",
    "compare": "results against a reference: rates, the target with its margin, and what may be said",
    "report": "results as one page with plots, and as Markdown",
    "card": "constants of this card, every candidate's time, and how well the kernels' model predicts both",
    "predict": "the decode step and the prefill of a profile on V100s, predicted",
}
"""Name and one line of each module in appliance/bench/verbs, in the order of `--help`."""


class Lazy(Parser):
    """A verb's parser, which imports the verb when it is asked for and no earlier."""

    def __init__(self, *, module: str, **keywords: Any) -> None:  # noqa: ANN401 - argparse's own keywords
        super().__init__(allow_abbrev=False, **keywords)
        self._name: str | None = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 - argparse's own
        """Configure the parser, once, then parse."""
        if self._name is not None:
            module = importlib.import_module(f"appliance.bench.verbs.{self._name}")
            self._name = None
            self.description = module.SUMMARY
            module.configure(self)
            self.set_defaults(run=module.run)
        return super().parse_known_args(args, namespace)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(VERBS), parser_class=Lazy)
    for name, summary in VERBS.items():
        verbs.add_parser(name, help=summary, module=name)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    return int(arguments.run(arguments))
