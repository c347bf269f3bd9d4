"""The exec probes: one JSON line and an exit status. Standard library only; a probe runs every few seconds."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from appliance import paths
from appliance.health import judge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROBES = ("startup", "live", "ready")


def answer(probe: str, report: judge.Report) -> dict[str, Any]:
    """Return what `probe` says, the same from a file, the command line and the sidecar."""
    return {"probe": probe, "status": "ok" if report.ok(probe) else "failed", **report.to_json()}


def main(probe: str, arguments: Sequence[str], run_dir: Path | None = None) -> int:
    """Print the answer of `probe` as one JSON line. Returns 0 when it passes, 1 when not, 2 for wrong usage."""
    if arguments:
        print(
            f"usage: healthchecks/{probe}   (no arguments; APPLIANCE_RUN_DIR names the run directory)", file=sys.stderr
        )
        return 2
    report = judge.report(run_dir or paths.run_dir())
    print(json.dumps(answer(probe, report), separators=(",", ":"), ensure_ascii=False))
    return 0 if report.ok(probe) else 1
