"""Launch each kernel a few times with nothing else around it, for compute-sanitizer; see run.sh.

    sanitized.py SECONDS [OPERATOR ...]

Wants no pytest. Every operator has its first case before any has its second, and no case starts after SECONDS.
Inputs are made and results checked on the CPU, so that the sanitizer instruments our kernels and hardly any other.
Run it with PYTORCH_NO_CUDA_MEMORY_CACHING=1: each tensor is then an allocation of its own, and memcheck sees its ends.
Before each launch its kernel is named, and after it the sanitizer is given time to say what it found there.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from sm70_kernels import dispatch
from sm70_kernels.build import store
from sm70_kernels.cases import cases as cases_of
from sm70_kernels.errors import KernelError
from sm70_kernels.launch import launcher
from sm70_kernels.proof.prove import relative_error
from sm70_kernels.proof.sanitizer import announcement
from sm70_kernels.proof.subject import Subject, copied, subjects

if TYPE_CHECKING:
    from sm70_kernels.cases import Case

CPU, GPU = torch.device("cpu"), torch.device("cuda")

# Under racecheck a launch takes a hundred times as long, and small shapes make the same accesses as large ones.
MOST_TOKENS = 9
MOST_BYTES = 8 * 2**20

PAUSE = 0.05
"""Seconds. The sanitizer writes from a process of its own: what it says after the next launch would count as its."""


def chosen(subject: Subject) -> list[Case]:
    """Return the small cases, and of those that differ in their tokens only the first."""
    found: dict[tuple[tuple[str, int], ...], Case] = {}
    for case in cases_of(subject.operator, "suite"):
        if case.sizes.get("tokens", 1) <= MOST_TOKENS and subject.moved_bytes(case) <= MOST_BYTES:
            found.setdefault(tuple(sorted((key, size) for key, size in case.sizes.items() if key != "tokens")), case)
    return list(found.values())


def announce_launches() -> None:
    """Let every launch name its kernel first, and return when it has ended and the sanitizer, too, had time."""
    launch = launcher._Function.__call__

    def announced(function: launcher._Function, *arguments: Any) -> None:
        spec = function._spec
        print(announcement(spec, store.load(spec, "ptx").decode()), flush=True)
        launch(function, *arguments)
        torch.cuda.synchronize()
        time.sleep(PAUSE)

    mock.patch.object(launcher._Function, "__call__", announced).start()


def failed(subject: Subject, case: Case) -> str:
    """Run one case. Returns what is wrong, or an empty string."""
    try:
        return _failed(subject, case)
    except (RuntimeError, ValueError, KernelError) as error:
        return f"{case.name}: {str(error).splitlines()[0]}"


def _failed(subject: Subject, case: Case) -> str:
    arguments = subject.inputs(case, CPU)
    results = subject.results([copied(each, GPU) for each in arguments])
    torch.cuda.synchronize()
    wanted = subject.wanted(arguments)
    error = max(relative_error(out.to(CPU), right) for out, right in zip(results, wanted, strict=True))
    return "" if error <= subject.gate else f"{case.name}: relative error {error:.2e}"


def main() -> int:
    """Run the chosen cases while time lasts. Returns 1 when a result is wrong."""
    start, limit = time.monotonic(), float(sys.argv[1])
    announce_launches()
    every_subject = subjects()
    dispatch.try_awaiting()
    every = [each for name, each in every_subject.items() if name in sys.argv[2:] or len(sys.argv) == 2]
    turns = itertools.zip_longest(*([(subject, case) for case in chosen(subject)] for subject in every))
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
