"""Launch each kernel a few times with nothing else around it, for compute-sanitizer: sanitized.py SECONDS; see run.sh.

Wants no pytest. Every operator has its first case before any has its second, and no case starts after SECONDS.
Inputs are made and results checked on the CPU, so that the sanitizer instruments our kernels and hardly any other.
Run it with PYTORCH_NO_CUDA_MEMORY_CACHING=1: each tensor is then an allocation of its own, and memcheck sees its ends.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING

import torch

from sm70_kernels import shapes
from sm70_kernels.launch import launcher
from sm70_kernels.proof.prove import exact, relative_error
from sm70_kernels.proof.subject import Subject, as_tuple, copied, subjects

if TYPE_CHECKING:
    from sm70_kernels.shapes import Case

CPU, GPU = torch.device("cpu"), torch.device("cuda")

# Under racecheck a launch takes a hundred times as long, and small shapes make the same accesses as large ones.
MOST_TOKENS = 9
MOST_BYTES = 8 * 2**20


def chosen(subject: Subject) -> list[Case]:
    """Return the small cases, and of those that differ in their tokens only the first."""
    found: dict[tuple[tuple[str, int], ...], Case] = {}
    for case in shapes.cases(subject.operator, "suite"):
        if case.sizes.get("tokens", 1) <= MOST_TOKENS and subject.moved_bytes(case) <= MOST_BYTES:
            found.setdefault(tuple(sorted((key, size) for key, size in case.sizes.items() if key != "tokens")), case)
    return list(found.values())


def failed(subject: Subject, case: Case) -> str:
    """Run one case. Returns what is wrong, or an empty string."""
    arguments = subject.inputs(case, CPU)
    results = as_tuple(subject.run(*(copied(each, GPU) for each in arguments)))
    torch.cuda.synchronize()
    wanted = as_tuple(subject.reference(*map(exact, arguments)))
    error = max(relative_error(out.to(CPU), right) for out, right in zip(results, wanted, strict=True))
    return "" if error <= subject.gate else f"{case.name}: relative error {error:.2e}"


def main() -> int:
    """Run the chosen cases while time lasts. Returns 1 when a result is wrong."""
    start, limit = time.monotonic(), float(sys.argv[1])
    turns = itertools.zip_longest(*([(subject, case) for case in chosen(subject)] for subject in subjects().values()))
    work = [pair for turn in turns for pair in turn if pair is not None]
    done, wrong = 0, []
    for subject, case in work:
        if time.monotonic() - start > limit:
            break
        done += 1
        if text := failed(subject, case):
            wrong.append(text)
    kernels = len({spec.name for spec, _ in launcher._FUNCTIONS})
    print(f"{done} of {len(work)} cases, {kernels} kernels, {len(wrong)} results wrong")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
