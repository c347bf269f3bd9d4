"""`python -m sm70_kernels.build --out DIR`: build every registered specialisation ahead of time."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sm70_kernels.build import ahead, manifest
from sm70_kernels.errors import KernelError
from sm70_kernels.registry import registered


def main() -> int:
    """Run the command. Returns 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.build", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder that will hold them")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compilations at once")
    parser.add_argument("--json", action="store_true", help="print the manifest when done")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: at least 1 is wanted")
    try:
        built, compiled = ahead.build(registered(), arguments.out, arguments.jobs, _report)
    except KernelError as error:
        print(f"sm70_kernels.build: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"sm70_kernels.build: cannot write {arguments.out}: {error.strerror}", file=sys.stderr)
        return 1
    if arguments.json:
        print(manifest.dump(built), end="")
    else:
        reused = len(built.kernels) - compiled
        print(
            f"{len(built.kernels)} kernels in {arguments.out}: {compiled} compiled by {built.compiler}, {reused} kept"
        )
    return 0


def _report(done: int, total: int, name: str) -> None:
    """Show progress on standard error: one bar that moves in a terminal, every tenth kernel in a log."""
    if sys.stderr.isatty():
        width = 30
        bar = "━" * (width * done // total)
        print(f"\r\033[K{bar:─<{width}} {done}/{total} {name[:60]}", end="\n" if done == total else "", file=sys.stderr)
    elif done == total or done % 10 == 0:
        print(f"built {done}/{total} kernels", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
