"""`python -m sm70_kernels.tuning --out FILE`: time the candidates for Qwen3.8-27B's shapes on this card."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sm70_kernels import qwen38
from sm70_kernels.errors import KernelError


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.tuning", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the record, JSON")
    parser.add_argument("--ranks", type=int, default=4, choices=qwen38.RANKS, help="of the tensor-parallel group")
    parser.add_argument(
        "--compile", action="store_true", help="try kernels around the table's choices too, compiled here: minutes"
    )
    chosen = parser.parse_args(arguments)

    import torch

    from sm70_kernels.build.ahead import write_whole
    from sm70_kernels.tuning import record, tune

    if not torch.cuda.is_available():
        print("sm70_kernels.tuning: no NVIDIA GPU here, and nothing can be timed without one", file=sys.stderr)
        return 1
    try:
        device, report = torch.device("cuda"), lambda line: print(line, file=sys.stderr)
        found = tune.tune(chosen.ranks, device, report, compiling=chosen.compile)
        write_whole(chosen.out, record.dump(found).encode())
    except (KernelError, RuntimeError) as error:
        print(f"sm70_kernels.tuning: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"sm70_kernels.tuning: cannot write {chosen.out}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{tune.chosen(found)} choices for a {found.card} in {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
