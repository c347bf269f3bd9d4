"""`appliance bench compare`: any result against any reference, or against another result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.bench import compare, compare_report, reference, result, verdict
from appliance.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    import argparse

    from appliance.bench.compare import Side

SUMMARY = (
    "Compare results with a reference: rates, the target with its margin, and what may be said. Exit status 0 where "
    "every result reaches the target, 1 where one misses it or may not be compared."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "results",
        nargs="*",
        metavar="RESULT",
        help="a result (FILE.json), a shipped reference by its name, or one of yours (FILE.yaml:NAME)",
    )
    parser.add_argument("--reference", metavar="NAME", help="what to compare with, given in the same ways")
    parser.add_argument(
        "--threshold", default="10", metavar="PERCENT", help="how much higher the rate must be (default: 10)"
    )
    parser.add_argument(
        "--list-differences",
        action="store_true",
        help="where contracts differ, show the figures with what differs instead of refusing; no claim is made",
    )
    parser.add_argument("--list", action="store_true", help="list the shipped references and end")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="JSON for programs")
    form.add_argument("--markdown", action="store_true", help="Markdown for reports")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. Raises ConfigurationError for files, names and numbers that are wrong."""
    if arguments.list:
        return _list(as_json=arguments.json)
    if not arguments.results or arguments.reference is None:
        raise ConfigurationError(
            "wanted a RESULT and --reference NAME; `appliance bench compare --list` tells the shipped references"
        )
    wanted = _threshold(arguments.threshold)
    other = side(arguments.reference)
    compared = [compare.compare(side(text), other) for text in arguments.results]
    pairs = [(each, verdict.judge(each, wanted)) for each in compared]
    if arguments.json:
        record = compare_report.to_json(pairs, wanted, differing=arguments.list_differences)
        print(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        form = compare_report.markdown if arguments.markdown else compare_report.text
        told = [form(each, found, figures=arguments.list_differences or not each.workload) for each, found in pairs]
        print("\n\n".join(told))
    return 0 if all(found.passed for _, found in pairs) else 1


def side(text: str) -> Side:
    """Return what `text` names: a result's file, a shipped reference, or FILE.yaml:NAME.

    Raises ConfigurationError with the nearest name or with what is wrong in the file.
    """
    if text.endswith(".json"):
        return compare.of_result(text, result.read(Path(text)))
    file, colon, name = text.rpartition(":")
    if colon and file.endswith((".yaml", ".yml")):
        known = reference.read(Path(file))
        if name not in known:
            raise ConfigurationError(
                f'{file} has no reference "{name}"{nearest(name, known)} (it has: {", ".join(known)})'
            )
        return compare.of_reference(name, known[name])
    if text.endswith((".yaml", ".yml")):
        raise ConfigurationError(f"{text} may hold several references; name one of them: {text}:NAME")
    return compare.of_reference(text, reference.load(text))


def _threshold(text: str) -> float:
    try:
        percent = float(text)
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 1000:
        raise ConfigurationError(f'--threshold is "{text}"; wanted percent from 0 to 1000')
    return percent / 100


def _list(*, as_json: bool) -> int:
    known = reference.load_all()
    if as_json:
        record = {name: each.model_dump(mode="json") for name, each in known.items()}
        print(json.dumps({"schema": 1, "references": record}, indent=2, ensure_ascii=False))
        return 0
    width = max(map(len, known))
    print("\n".join(f"{name:<{width}}  {each.title} ({each.provenance})" for name, each in known.items()))
    return 0
