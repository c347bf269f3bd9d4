"""Times the control plane as a person and an orchestrator meet it: whole processes, and the sidecar under load.

A benchmark, not a test: on a busy machine the wall time may exceed a limit although the code is as fast as ever. The
processor time beside it tells the two apart.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import paths
from appliance.bench import run_directory, sidecar
from appliance.errors import ApplianceError, CheckError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from appliance.bench.sidecar import Figure

DECISION_LIMIT_S = 0.4
PROBE_LIMIT_S = 0.1
"""Of the decisions and of the exec probes (docs/architecture.md, "Time and memory budgets")."""

TIMEOUT_S = 60.0
"""A command that has not ended by then hangs; it is killed and named."""

RECORDINGS = ("4xv100-sxm2-16gb", "8xv100-dgx1", "none")
"""The release machine, the one with the most sets of GPUs to weigh, and the one without any."""


@dataclass(frozen=True)
class Case:
    """One command and the limit of its median. `prepare` runs before each run and is not timed."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    prepare: Callable[[], None] | None = None


@dataclass(frozen=True)
class Timing:
    """Times in seconds of `runs` whole processes, without the warm-up: wall time, and `cpu_s` user plus system."""

    name: str
    runs: int
    median_s: float
    max_s: float
    cpu_s: float
    limit_s: float
    within: bool


def measure(case: Case, runs: int, environment: dict[str, str]) -> Timing:
    """Run `case` once to warm the page cache, then `runs` times.

    Raises CheckError when the command fails, hangs or is missing: the time of a failure says nothing.
    """
    timed = [_once(case, environment) for _ in range(runs + 1)][1:]
    wall, cpu = zip(*timed, strict=True)
    median = statistics.median(wall)
    return Timing(
        case.name, runs, median, max(wall), statistics.median(cpu), case.limit_s, within=median <= case.limit_s
    )


def _once(case: Case, environment: dict[str, str]) -> tuple[float, float]:
    if case.prepare:
        case.prepare()
    started, used = time.perf_counter(), _children_cpu_s()
    try:
        done = subprocess.run(
            case.command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"`{case.name}` has not ended after {TIMEOUT_S:g} s; run it alone to see why") from error
    except OSError as error:
        raise CheckError(f"`{case.name}` cannot be started: {error.strerror}: {case.command[0]}") from error
    took = time.perf_counter() - started, _children_cpu_s() - used
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        last = said[-1] if said else "it said nothing"
        raise CheckError(f"`{case.name}` ended with status {done.returncode} instead of 0: {last}")
    return took


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cases(run_dir: Path) -> list[Case]:
    """Every decision that the promise names, over `RECORDINGS`, then the exec probes against `run_dir`."""
    appliance = (sys.executable, "-m", "appliance.cli")
    found = []
    for name in RECORDINGS:
        recording = ("--topology", str(paths.TOPOLOGIES / f"{name}.json"), "--json")
        found.append(Case(f"appliance plan, {name}", (*appliance, "plan", *recording), DECISION_LIMIT_S))
        found.append(
            Case(f"appliance profiles select, {name}", (*appliance, "profiles", "select", *recording), DECISION_LIMIT_S)
        )
    for probe in ("startup", "live", "ready"):
        script = str(paths.ROOT / "healthchecks" / probe)
        found.append(
            Case(f"healthchecks/{probe}", (script,), PROBE_LIMIT_S, prepare=lambda: run_directory.write_ready(run_dir))
        )
    return found


def environment(run_dir: Path) -> dict[str, str]:
    """The caller's environment without its settings, so that the figures do not depend on them."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    return {
        **clean,
        "APPLIANCE_RUN_DIR": str(run_dir),
        "PATH": f"{Path(sys.executable).parent}:{clean.get('PATH', '')}",
    }


def table(timings: Sequence[Timing]) -> str:
    """The timings as aligned text, in seconds."""
    rows: list[tuple[str, ...]] = [("command", "median", "max", "processor", "limit", "")]
    rows += [
        (
            t.name,
            *(f"{seconds:.3f} s" for seconds in (t.median_s, t.max_s, t.cpu_s, t.limit_s)),
            "" if t.within else "over",
        )
        for t in timings
    ]
    return _aligned(rows)


def figures_table(figures: Sequence[Figure]) -> str:
    """The sidecar's figures as aligned text."""
    rows: list[tuple[str, ...]] = [("figure", "value", "limit", "")]
    rows += [
        (f.name, sidecar.text(f.value, f.unit), sidecar.text(f.limit, f.unit), "" if f.within else "over")
        for f in figures
    ]
    return _aligned(rows)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def to_json(timings: Sequence[Timing], figures: Sequence[Figure] = ()) -> dict[str, Any]:
    """The timings with `schema` 1; all times in seconds, sizes in bytes."""
    return {
        "schema": 1,
        "within": all(t.within for t in timings) and all(f.within for f in figures),
        "timings": [asdict(t) for t in timings],
        "figures": [{**asdict(f), "within": f.within} for f in figures],
    }


def main(
    argv: Sequence[str] | None = None,
    found: Sequence[Case] | None = None,
    measured: Callable[[Path, int, Mapping[str, str]], Sequence[Figure]] = sidecar.measure,
) -> int:
    """Time `found`, or else everything, and measure the sidecar. Returns 0 when all is within its limit, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m appliance.bench.control_plane", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--runs", type=_positive, default=9, metavar="N", help="timed runs of each command (default 9)")
    parser.add_argument(
        "--requests", type=_positive, default=1000, metavar="N", help="questions to the busy sidecar (default 1000)"
    )
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="appliance-bench-") as scratch:
        run_dir = Path(scratch, "probes")
        run_dir.mkdir()
        try:
            timings = [measure(c, arguments.runs, environment(run_dir)) for c in (found or cases(run_dir))]
            figures = measured(Path(scratch), arguments.requests, environment(run_dir))
        except ApplianceError as error:
            print(f"appliance: {error}", file=sys.stderr)
            return error.exit_status
    whole = to_json(timings, figures)
    print(json.dumps(whole, indent=2) if arguments.json else f"{table(timings)}\n\n{figures_table(figures)}")
    return 0 if whole["within"] else 1


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number of at least 1')
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
