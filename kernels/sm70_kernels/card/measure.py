"""Ask a card: run the questions' kernels at both lengths, time every family's candidates, and predict both."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from sm70_kernels import timing
from sm70_kernels.card import findings, solve, table
from sm70_kernels.card.questions import FULL, QUESTIONS, bytes_in_flight, read, read_lengths
from sm70_kernels.card.subject import counters
from sm70_kernels.launch import launch, module
from sm70_kernels.predict.constants import CAPABILITIES, constants
from sm70_kernels.predict.launch import Buffer
from sm70_kernels.predict.prediction import predict
from sm70_kernels.registry import source_hash
from sm70_kernels.tuning import planned, trial, tune

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sm70_kernels.card.questions import Question
    from sm70_kernels.predict.constants import Constants
    from sm70_kernels.predict.launch import Launch
    from sm70_kernels.registry import Specialisation

SCHEMA = 1
REPEATS = 5
LAUNCHES = 400
"""Of the empty kernel in one graph."""


@dataclass(frozen=True, slots=True)
class Card:
    """What is asked: its name, compute capability and SMs."""

    name: str
    capability: str
    sms: int


def here(device: torch.device) -> Card:
    """Return the card at hand."""
    found = torch.cuda.get_device_properties(device)
    return Card(found.name, f"{found.major}.{found.minor}", found.multi_processor_count)


def record(ranks: int, device: torch.device, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the record, ready for JSON; `report` is given a line for each thing that was found.

    Raises KernelError when a kernel cannot be had, RuntimeError when candidates that are to give the same bits do not.
    """
    module.take_cubins_on_turing()
    card = here(device)
    ours = replace(constants(), sms=card.sms)
    clock, by_reads = _clock(device), _reads(card, device)
    report(f"clock {clock:.3f} GHz while one warp works")
    measured = {question.constant: _differences(question, card, device) for question in QUESTIONS}
    answers, theirs = solve.answers(QUESTIONS, measured, replace(ours, clock=clock))
    for answer in answers:
        report(f"{answer.constant}: {answer.note or f'{answer.value:.4g}, the model has {answer.own:.4g}'}")
    empty = _empty(device)
    theirs = replace(theirs, **_start(empty, theirs))
    report(f"an empty kernel in a graph: {empty:.3f} µs from start to start")
    timed = list(_timed(_trials(ranks, device, card, report), ours, theirs, report))
    return {
        "schema": SCHEMA,
        "card": card.name,
        "capability": card.capability,
        "sms": card.sms,
        "torch": torch.__version__,
        "source_hash": source_hash(),
        "clock_ghz": round(clock, 4),
        "empty_us": round(empty, 4),
        "reads": by_reads,
        "answers": [asdict(answer) for answer in answers],
        "constants": _figures(card, clock, answers, empty, theirs),
        "trials": [asdict(each) for each in timed],
        "agreement": [asdict(each) for each in findings.agreements(timed, with_card=False)],
        "agreement_with_card": [asdict(each) for each in findings.agreements(timed, with_card=True)],
        "changes": list(findings.changes(timed)),
    }


def _trials(ranks: int, device: torch.device, card: Card, report: Callable[[str], None]) -> Iterator[trial.Trial]:
    if card.capability not in CAPABILITIES:
        report(f"compute capability {card.capability} emulates mma.sync.m8n8k4: dense tactics are not timed")
    else:
        yield from tune.trials(ranks, device)
    yield from planned.trials(ranks, device, report)


def _timed(
    trials: Iterator[trial.Trial], ours: Constants, theirs: Constants, report: Callable[[str], None]
) -> Iterator[findings.Timed]:
    for each in trials:
        kernels = tuple(candidate.spec.name for candidate in each.candidates)
        # A graph's launches follow one another after a gap, which the kernels' own times do not have in them.
        own, card = (
            tuple(round(predict(one.spec, one.launch, machine).us + machine.gap, 3) for one in each.candidates)
            for machine in (ours, theirs)
        )
        found = findings.Timed(each.family, each.what, kernels, trial.microseconds(each), own, card)
        report(f"{each.family} {each.what}: {', '.join(f'{us:.1f}' for us in found.microseconds)} µs")
        yield found


def _arguments(spec: Specialisation, described: Launch, device: torch.device) -> tuple[Any, ...]:
    """Return memory for a launch's buffers, zeros all, and its numbers; the second buffer takes the cycles, if any."""
    made = []
    for number, each in enumerate(described.args):
        if not isinstance(each, Buffer):
            made.append(each)
        elif number == 1 and spec.kernel is not table.READ_KERNEL:
            made.append(counters(spec, device))
        else:
            made.append(torch.zeros(-(-each.bytes // 4), dtype=torch.int32, device=device))
    return tuple(made)


def _differences(question: Question, card: Card, device: torch.device) -> list[float]:
    """Return the difference between the long and the short run of each repeat."""
    runs = []
    for length in question.lengths:
        described = question.launch(card.sms, length)
        runs.append((described, _arguments(question.spec, described, device)))
    spill = _spill(device)
    found = []
    for repeat in range(REPEATS + 1):
        each = []
        for described, arguments in runs:
            if question.cold:
                spill.add_(1)
            each.append(_once(question, described, arguments))
        # The first run loads the code.
        if repeat:
            found.append(each[1] - each[0])
    return found


def _once(question: Question, described: Launch, arguments: Sequence[Any]) -> float:
    if question.unit == "us":
        return timing.elapsed_microseconds(lambda: launch(question.spec, described.grid, arguments))
    launch(question.spec, described.grid, arguments)
    return float(arguments[1].max())


def _spill(device: torch.device) -> torch.Tensor:
    """Return memory which, once it is written, leaves nothing else in L2."""
    size: int = torch.cuda.get_device_properties(device).L2_cache_size
    return torch.zeros(max(4 * size, 1 << 26), dtype=torch.uint8, device=device)


def _clock(device: torch.device) -> float:
    """Return the SM clock in GHz: cycles of a long chain over its time, the start of both runs taken off."""
    question = next(each for each in QUESTIONS if each.constant == "shared")
    cycles, times = [], []
    for steps in (1 << 15, 1 << 18):
        described = question.launch(1, steps)
        arguments = _arguments(question.spec, described, device)
        run = partial(launch, question.spec, described.grid, arguments)
        seen = [timing.elapsed_microseconds(run) for _ in range(REPEATS)]
        cycles.append(float(arguments[1].max()))
        times.append(sorted(seen)[REPEATS // 2])
    return (cycles[1] - cycles[0]) / (times[1] - times[0]) / 1e3


def _reads(card: Card, device: torch.device) -> list[dict[str, Any]]:
    """Return GB/s by bytes in flight an SM, from memory that is not in L2."""
    rows, spill = [], _spill(device)
    for spec in sorted(table.READS, key=bytes_in_flight):
        described = read(spec)(card.sms, read_lengths(spec)[1])
        arguments = _arguments(spec, described, device)
        size = described.args[1]
        assert isinstance(size, Buffer)
        times = []
        for _ in range(REPEATS + 1):
            spill.add_(1)
            times.append(timing.elapsed_microseconds(partial(launch, spec, described.grid, arguments)))
        median = sorted(times[1:])[REPEATS // 2]
        rows.append(
            {
                "kernel": spec.name,
                "bytes_in_flight": bytes_in_flight(spec),
                "gb_s": round(size.bytes / median / 1e3, 1),
            }
        )
    assert spec is FULL
    return rows


def _empty(device: torch.device) -> float:
    """Return the µs from the start of an empty kernel to that of the next, in a graph."""
    out = torch.zeros(32, device=device)
    return timing.graph_microseconds([lambda: launch(table.EMPTY, 1, (out, 0))], launches=LAUNCHES)


def _start(empty: float, machine: Constants) -> dict[str, float]:
    """Return the start of a kernel and the gap before it; how the sum is shared out, one number cannot tell."""
    ramp = min(machine.ramp, empty)
    return {"ramp": ramp, "gap": empty - ramp}


def _figures(
    card: Card, clock: float, answers: Sequence[solve.Answer], empty: float, machine: Constants
) -> dict[str, dict[str, Any]]:
    """Return the constants that `sm70_kernels.predict --constants` takes."""

    def figure(value: float, slow: float, fast: float, how: str) -> dict[str, Any]:
        return {"value": value, "slow": slow, "fast": fast, "source": f"measured on a {card.name}: {how}"}

    shared = f"{empty:.3f} us from one empty kernel to the next in a graph, of which the model's start of a kernel"
    single = {
        "sms": (float(card.sms), "its properties"),
        "clock": (round(clock, 4), "cycles over time of one warp"),
        "ramp": (round(machine.ramp, 4), shared),
        "gap": (round(machine.gap, 4), f"the rest of {shared}"),
    }
    found = {name: figure(value, value, value, how) for name, (value, how) in single.items()}
    for answer in answers:
        if answer.value is not None and answer.slow is not None and answer.fast is not None:
            low, high = sorted((answer.slow, answer.fast))
            value = min(max(answer.value, low), high)
            found[answer.constant] = figure(value, answer.slow, answer.fast, f"{answer.about} ({answer.kernel})")
    return found
