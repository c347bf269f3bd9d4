"""The engine's step record, and which of its intervals are stable decode steps.

An interval is the time from one step's output to the next one's, both on the engine core's own clock. It is a stable
decode step where both steps computed one full batch and no prompt token; everything else is excluded with its reason,
and counted. Prefill, time to first token and wall time never enter.
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance import rundir
from appliance.bench.result import Counted
from appliance.errors import CheckError
from appliance.rundir.step_line import StepLine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

REPLAYED = frozenset({"FULL", "PIECEWISE"})
"""vLLM's modes in which a step's kernels come out of a captured CUDA graph, all of them or all but attention."""

GAP = "a step between them is missing from the record"
PREFILL = "prompt tokens were computed"
PARTIAL = "fewer requests than the full batch"
FOREIGN = "more requests than were sent: somebody else's"
EAGER = "no CUDA graph was replayed"
WARM_UP = "warm-up: the first steps of the full batch"


@dataclass(frozen=True)
class Step:
    """One executed step. `t` in seconds on rundir.clock(); `graph` is None where vLLM did not tell it."""

    t: float
    step_count: int
    """Steps that the engine had executed then, this one included."""
    requests: int
    prefill_tokens: int
    decode_tokens: int
    generated_tokens: int
    running: int
    waiting: int
    graph: str | None = None


@dataclass(frozen=True)
class Record:
    """Steps in the order executed, and how many the engine said that it could not write."""

    steps: tuple[Step, ...]
    lost: int = 0

    @property
    def generated(self) -> int:
        """All tokens that were sampled."""
        return sum(step.generated_tokens for step in self.steps)

    @property
    def idle(self) -> bool:
        """Whether its last step left nothing to do."""
        return bool(self.steps) and not self.steps[-1].running and not self.steps[-1].waiting


def read(run_dir: Path, since: float = 0.0) -> Record:
    """Return what was recorded in `run_dir` after `since`, the older file first.

    Raises CheckError where there is no record.
    """
    files = [run_dir / rundir.PREVIOUS_STEPS, run_dir / rundir.STEPS]
    if not files[1].exists():
        raise CheckError(
            f"{files[1]} is not there; the engine writes it with its first step, under the scheduler that "
            "`appliance serve` gives it: name its run directory with --run-dir"
        )
    lines: list[str] = []
    for file in files:
        try:
            lines += file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise CheckError(f"{file}: cannot be read ({error}); wanted the engine's step record") from None
    # Of the hundreds of thousands of lines that a long-running engine keeps, only the last ones are wanted.
    first = bisect_right(lines, since, key=_moment)
    return parse(lines[first:], since, before=first)


def _moment(line: str) -> float:
    try:
        moment = StepLine.from_json(json.loads(line)).t
    except ValueError:
        return math.inf
    return math.inf if moment is None else moment


def parse(lines: Iterable[str], since: float = 0.0, *, before: int = 0) -> Record:
    """Return the steps in lines of steps.jsonl. A last line that is still being written is left for later.

    `before` lines of the record precede the first of `lines`.

    Raises CheckError for a line that no engine of ours wrote.
    """
    steps: list[Step] = []
    lost = 0
    broken = None
    for number, line in enumerate(lines, before + 1):
        if broken is not None:
            raise CheckError(f"step record, line {broken}: no step in JSON; wanted the lines of {rundir.STEPS}")
        try:
            entry = StepLine.from_json(json.loads(line))
        except ValueError:
            broken = number
            continue
        if entry.t is None:
            broken = number
        elif entry.t > since and entry.lost is not None:
            lost += entry.lost
        elif entry.t > since:
            step = _step(entry)
            if step is None:
                broken = number
            else:
                steps.append(step)
    return Record(tuple(steps), lost)


def _step(line: StepLine) -> Step | None:
    """Return the step of a line; None where the line lacks a figure."""
    if (
        line.t is None
        or line.step_count is None
        or line.requests is None
        or line.prefill_tokens is None
        or line.decode_tokens is None
        or line.generated_tokens is None
        or line.running is None
        or line.waiting is None
    ):
        return None
    return Step(
        t=line.t,
        step_count=line.step_count,
        requests=line.requests,
        prefill_tokens=line.prefill_tokens,
        decode_tokens=line.decode_tokens,
        generated_tokens=line.generated_tokens,
        running=line.running,
        waiting=line.waiting,
        graph=line.graph,
    )


@dataclass(frozen=True)
class DecodeTrace:
    """The stable decode steps of one run. `excluded` counts the other intervals by their reason."""

    intervals_ms: tuple[float, ...]
    generated: tuple[int, ...]
    """Tokens that each of them sampled."""
    excluded: dict[str, int]
    graphs: dict[str, int]
    """How many of them by vLLM's graph mode; empty where it was not told."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens sampled a second of stable decoding, of all requests together."""
        return 1000.0 * sum(self.generated) / sum(self.intervals_ms)


def stable(steps: Sequence[Step], batch: int, warm_up: int, *, eager: bool = False) -> DecodeTrace:
    """Return the stable decode steps of `batch` requests, without the first `warm_up` of them.

    Where the record tells how a step ran, only steps out of a CUDA graph count; `eager` admits the others.
    """
    intervals: list[float] = []
    generated: list[int] = []
    excluded: Counter[str] = Counter()
    graphs: Counter[str] = Counter()
    full = 0
    for before, step in itertools.pairwise(steps):
        reason = _excluded(before, step, batch, eager=eager)
        if reason is None:
            full += 1
            if full <= warm_up:
                reason = WARM_UP
        if reason is not None:
            excluded[reason] += 1
            continue
        intervals.append(1000.0 * (step.t - before.t))
        generated.append(step.generated_tokens)
        if step.graph is not None:
            graphs[step.graph] += 1
    return DecodeTrace(tuple(intervals), tuple(generated), dict(excluded), dict(graphs))


def _excluded(before: Step, step: Step, batch: int, *, eager: bool) -> str | None:
    both = (before, step)
    if step.step_count != before.step_count + 1:
        return GAP
    if any(one.prefill_tokens for one in both):
        return PREFILL
    if any(one.requests > batch for one in both):
        return FOREIGN
    if any(one.requests < batch for one in both):
        return PARTIAL
    if not eager and any(one.graph is not None and one.graph not in REPLAYED for one in both):
        return EAGER
    return None


def exclusions(found: Iterable[DecodeTrace]) -> tuple[Counted, ...]:
    """Return what all traces together left out, the commonest reason first."""
    total: Counter[str] = Counter()
    for trace in found:
        total.update(trace.excluded)
    return tuple(Counted(reason=reason, count=count, unit="steps") for reason, count in total.most_common())
