"""`appliance probe startup|live|ready`: what the exec probes answer, in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import paths
from appliance.health import judge, probe

if TYPE_CHECKING:
    import argparse

SUMMARY = "Say whether the appliance has started, is alive or is ready, and why. Exit status 0 for yes, 1 for no."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("probe", choices=probe.PROBES)
    parser.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="the run directory (default: APPLIANCE_RUN_DIR, else .appliance/run)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Judge the run directory and print the answer."""
    report = judge.report(arguments.run_dir or paths.run_dir())
    passed = report.ok(arguments.probe)
    if arguments.json:
        print(json.dumps(probe.answer(arguments.probe, report), indent=2, ensure_ascii=False))
    else:
        print(f"{arguments.probe}: {'yes' if passed else 'no'}, {report.phase}: {report.reason}")
    return 0 if passed else 1
