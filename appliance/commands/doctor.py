"""`appliance doctor`: check this machine for what a start needs, and say what to do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.launch import settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from appliance.doctor.check import Check
    from appliance.launch.request import Request

SUMMARY = "Check driver, libraries, GPUs, folders, model files and ports, and say what to do. Starts nothing."

_WORDS = {"ok": "ok", "warn": "LOOK", "fail": "FAIL", "skipped": "-"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options: those of a start, which is what is checked."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    settings.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print each check as it is done. Returns 1 when one failed, else 0."""
    from appliance.doctor.run import summary
    from appliance.launch import request

    asked = request.from_arguments(arguments, os.environ, Path.cwd())
    checks = []
    for check in _checks(asked):
        checks.append(check)
        if not arguments.json:
            print("\n".join(to_text(check)))
            # Some checks take many seconds; the ones before them are to be seen meanwhile.
            sys.stdout.flush()
    failed = any(check.status == "fail" for check in checks)
    if arguments.json:
        record = {"schema": 1, "ok": not failed, "checks": [check.to_json() for check in checks]}
        print(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        print(f"\n{summary(checks)}")
    return 1 if failed else 0


def _checks(asked: Request) -> Iterator[Check]:
    """Check the plan of a start, or without one what would most likely be started."""
    from appliance.doctor import scope
    from appliance.doctor.check import Check
    from appliance.doctor.run import examine
    from appliance.errors import ApplianceError
    from appliance.launch.resolve import resolve

    try:
        plan = resolve(asked)
    except ApplianceError as error:
        yield Check("plan", "plan", "fail", str(error), todo="`appliance profiles select` says what fits, and why")
        checked = scope.likely(asked)
    else:
        yield Check("plan", "plan", "ok", f"profile {plan.profile}: {plan.title}")
        checked = scope.of_plan(plan)
    yield from examine(checked, asked.machine)


def to_text(check: Check) -> Iterator[str]:
    """Yield the lines that a person reads."""
    differs = check.status in ("warn", "fail")
    wanted = f"; wanted {check.wanted}" if differs and check.wanted else ""
    yield f"{_WORDS[check.status]:<6}{check.title:<22}{check.found}{wanted}"
    if differs:
        yield f"{'':<6}{'':<22}→ {check.todo}"
