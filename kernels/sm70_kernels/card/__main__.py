"""`python -m sm70_kernels.card --out FILE`: measure this card and hold the predicting model to it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sm70_kernels import qwen38
from sm70_kernels.errors import KernelError


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 with one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.card", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the record, JSON")
    parser.add_argument("--ranks", type=int, default=4, choices=qwen38.RANKS, help="of the tensor-parallel group")
    chosen = parser.parse_args(arguments)

    import torch

    if not torch.cuda.is_available():
        print("sm70_kernels.card: no NVIDIA GPU here, and nothing can be measured without one", file=sys.stderr)
        return 1
    if torch.cuda.get_device_capability() < (7, 0):
        print(
            f"sm70_kernels.card: {torch.cuda.get_device_name()} is older than compute capability 7.0", file=sys.stderr
        )
        return 1
    from sm70_kernels.build.ahead import write_whole
    from sm70_kernels.card import measure

    device = torch.device("cuda", torch.cuda.current_device())
    try:
        found = measure.record(chosen.ranks, device, lambda line: print(line, file=sys.stderr, flush=True))
        write_whole(chosen.out, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    except (KernelError, RuntimeError) as error:
        print(f"sm70_kernels.card: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"sm70_kernels.card: cannot write {chosen.out}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
