"""Which implementation of an operator serves in this process, and how often each did. Imports no torch.

A call costs one entry of a dictionary: no lock, nothing of a tensor but its length. The replay of a CUDA graph enters
no Python. Whoever captures a graph counts `apart` what the capture enters, and multiplies it by the replays.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

KERNEL = "kernel"
EXPANSION = "expansion"
"""Weights expanded to FP16 by a kernel of ours, and a library's product."""
REFERENCE = "reference"
"""Plain torch: on a CPU, and on a GPU where the operator has no kernel that may serve."""

Counts = dict[tuple[str, str], list[int]]
"""Calls and rows by operator and provider. Rows are the first dimension of the operator's first tensor."""

AWAITING: set[str] = set()
"""Operators, of those registered, whose kernel no GPU has run yet: they run their references."""

_REFERENCES: set[str] = set()


class _Now:
    """Where calls are counted: one thread launches a process's operators, others read."""

    def __init__(self) -> None:
        self.counts: Counts = {}


_NOW = _Now()


def count(operator: str, provider: str, rows: int) -> None:
    """Count one call of an operator."""
    counts = _NOW.counts
    entry = counts.get((operator, provider))
    if entry is None:
        counts[operator, provider] = [1, rows]
    else:
        entry[0] += 1
        entry[1] += rows


def counted() -> Counts:
    """Return a copy of what was counted in this process, less what was counted apart. Any thread may ask."""
    return {key: list(entry) for key, entry in _NOW.counts.copy().items()}


@contextmanager
def apart() -> Iterator[Counts]:
    """Count the calls inside into a dictionary of their own, which is given; they are not `counted`."""
    whole = _NOW.counts
    own: Counts = {}
    _NOW.counts = own
    try:
        yield own
    finally:
        _NOW.counts = whole


def use_references(operators: Iterable[str]) -> None:
    """Let these operators run their references on CUDA from now on, and all others what they have.

    Graphs that are captured already keep what they have.
    """
    _REFERENCES.clear()
    _REFERENCES.update(operators)


def kernel_serves(operator: str) -> bool:
    """Say whether an operator that has a kernel runs it on CUDA now."""
    return operator not in _REFERENCES and operator not in AWAITING


def try_awaiting() -> None:
    """Let operators whose kernel awaits a GPU run it in this process: for the GPU suite, and nobody else."""
    AWAITING.clear()


def on_cuda(
    name: str, kernel: Callable[..., Any], reference: Callable[..., Any], counts_itself: bool
) -> Callable[..., Any]:
    """Return an operator's implementation for CUDA: its kernel, unless the reference is to serve."""

    plain, key = by_reference(name, reference), (name, KERNEL)

    def run(*arguments: Any) -> Any:  # noqa: ANN401 - an operator's results
        if name in _REFERENCES or name in AWAITING:
            return plain(*arguments)
        if not counts_itself:
            entry = _NOW.counts.get(key)
            if entry is None:
                count(name, KERNEL, arguments[0].size(0))
            else:
                entry[0] += 1
                entry[1] += arguments[0].size(0)
        return kernel(*arguments)

    return run


def by_reference(name: str, reference: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator's implementation where there is no kernel."""

    key = (name, REFERENCE)

    def run(*arguments: Any) -> Any:  # noqa: ANN401 - an operator's results
        entry = _NOW.counts.get(key)
        if entry is None:
            count(name, REFERENCE, arguments[0].size(0))
        else:
            entry[0] += 1
            entry[1] += arguments[0].size(0)
        return reference(*arguments)

    return run
