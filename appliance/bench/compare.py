"""A result or a reference against another: what differs in their contracts, and how their figures stand to each other.

Pure. Speeds are compared as rates: a step of half the time is a rate 100% higher.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.bench.reference import STATISTICS, rates_of
from appliance.bench.result import pooled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from appliance.bench.reference import Reference, Statistic
    from appliance.bench.result import Contract, Result, Stats, System, Trace, Workload

ALL = "all"
"""The mode of a whole distribution."""

SHARE = "share"
"""In the place of a statistic: how large a mode is."""

Key = tuple[str, str, str]
"""Quantity, mode and statistic: `itl_ms`, `under 100 ms`, `p50`; a rate has no statistic."""

HEADLINES: dict[str, tuple[Key, ...]] = {
    "stable_decode_steps": (("decode_step_ms", ALL, "mean"),),
    "serving": (("output_tokens_per_s", ALL, ""),),
    "token_stream": (("decode_tokens_per_s", ALL, ""), ("output_tokens_per_s", ALL, "")),
}
"""What a verdict is about, by what was measured: the first that both sides have."""


@dataclass(frozen=True)
class Side:
    """One of the two, in a form that results and references share."""

    name: str
    title: str
    provenance: str
    contract: Contract
    values: Mapping[Key, float]
    repeats: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The mean of each trace by metric, where there are several."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Samples of each metric, where they are told."""
    derived: frozenset[Key] = frozenset()
    """Values that nobody printed or measured as such."""
    failed: int = 0
    """Requests."""
    unsound: tuple[str, ...] = ()
    """What else went wrong: `3 prompt tokens that the engine counted otherwise`."""
    screen: str | None = None


@dataclass(frozen=True)
class Difference:
    """A part of the contracts that is not the same. None: that side does not tell."""

    part: str
    subject: Any
    reference: Any

    @property
    def untold(self) -> bool:
        """Whether one of the sides does not tell, so that nobody knows."""
        return self.subject is None or self.reference is None

    def __str__(self) -> str:
        if self.untold:
            return self.part
        return f"{self.part} {shown(self.subject)} ≠ {shown(self.reference)}"


@dataclass(frozen=True)
class Line:
    """One figure of both sides."""

    key: Key
    subject: float
    reference: float
    derived: bool = False

    @property
    def is_share(self) -> bool:
        """Whether it tells the size of a mode: a share is neither better nor worse for being larger."""
        return self.key[2] == SHARE

    @property
    def is_time(self) -> bool:
        """Whether lower is better."""
        return self.key[0].endswith("_ms") and not self.is_share

    @property
    def gain(self) -> float:
        """How much higher the subject's rate is: 0.1362 for 13.62%."""
        return (self.reference / self.subject if self.is_time else self.subject / self.reference) - 1.0

    @property
    def change(self) -> float:
        """How the figure itself changed, as a share of the reference's: -0.187 for a step 18.7% shorter."""
        return self.subject / self.reference - 1.0


@dataclass(frozen=True)
class Comparison:
    """Both sides, the differences of their contracts, and every figure that both have."""

    subject: Side
    reference: Side
    workload: tuple[Difference, ...]
    """Told by both and not the same: the two are not comparable."""
    untold: tuple[Difference, ...]
    system: tuple[Difference, ...]
    """What is compared: it may differ."""
    lines: tuple[Line, ...]

    @property
    def headline(self) -> Line | None:
        """What a verdict is about, None where the two share no such figure."""
        by_key = {line.key: line for line in self.lines}
        keys = HEADLINES[self.subject.contract.workload.measured]
        return next((by_key[key] for key in keys if key in by_key), None)


def compare(subject: Side, reference: Side) -> Comparison:
    """Return how `subject` stands to `reference`."""
    workload = list(_differences(subject.contract.workload, reference.contract.workload))
    system = tuple(_differences(subject.contract.system, reference.contract.system))
    lines = tuple(
        # Of nothing, no rate can be taken: tokens that arrive together have intervals of 0 ms.
        _line(key, subject, reference)
        for key in subject.values
        if subject.values[key] and reference.values.get(key)
    )
    return Comparison(
        subject=subject,
        reference=reference,
        workload=tuple(each for each in workload if not each.untold),
        untold=tuple(each for each in workload if each.untold),
        system=tuple(each for each in system if not each.untold),
        lines=lines,
    )


def of_result(name: str, result: Result) -> Side:
    """Return the side of a result of ours. Repeats are pooled; percentiles only where their samples were kept."""
    values: dict[Key, float] = {}
    repeats: dict[str, tuple[float, ...]] = {}
    counts: dict[str, int] = {}
    for metric, mode in dict.fromkeys((trace.metric, trace.mode) for trace in result.traces):
        traces = result.of(metric, mode)
        values |= {(metric, mode, name): value for name, value in _pooled(traces).items()}
        if mode == ALL:
            counts[metric] = sum(trace.stats.count for trace in traces if trace.stats)
        if mode == ALL and len(traces) > 1:
            repeats[metric] = tuple(trace.stats.mean for trace in traces if trace.stats)
            if metric == "tpot_ms":
                repeats["decode_tokens_per_s"] = tuple(1000.0 / mean for mean in repeats[metric])
        elif mode != ALL:
            values[metric, mode, SHARE] = sum(trace.share for trace in traces) / len(traces)
    rates = {**result.rates, **rates_of(result.totals)}
    values |= {(rate, ALL, ""): value for rate, value in rates.items()}
    lost = sum(each.count for each in result.failures if each.unit == "requests")
    unsound = tuple(f"{each.count} {each.reason}" for each in result.failures if each.unit != "requests")
    return Side(
        name=name,
        title=result.title,
        provenance="measured",
        contract=result.contract,
        values=_with_decode_rate(values),
        repeats=repeats,
        counts=counts,
        # Requests of a warm-up that failed are in no total.
        failed=max(lost, result.totals.failed if result.totals else 0),
        unsound=unsound,
        screen=result.screen,
    )


def of_reference(name: str, reference: Reference) -> Side:
    """Return the side of a reference. Exact rates out of its totals take the place of printed ones."""
    values: dict[Key, float] = {}
    derived: set[Key] = set()
    for metric, spread in reference.times.items():
        values |= {(metric, ALL, statistic): value for statistic, value in spread.values.items()}
        derived |= {(metric, ALL, statistic) for statistic in spread.derived}
    for mode in reference.modes:
        told = mode.times.values if mode.times else {}
        values |= {(mode.metric, mode.mode, statistic): value for statistic, value in told.items()}
        if mode.share is not None:
            values[mode.metric, mode.mode, SHARE] = mode.share
    rates = {**reference.rates, **rates_of(reference.totals)}
    values |= {(rate, ALL, ""): value for rate, value in rates.items()}
    return Side(
        name=name,
        title=reference.title,
        provenance=reference.provenance,
        contract=reference.contract,
        values=_with_decode_rate(values),
        repeats={metric: spread.repeats for metric, spread in reference.times.items() if len(spread.repeats) > 1},
        counts={metric: spread.count for metric, spread in reference.times.items() if spread.count},
        derived=frozenset(derived),
        failed=reference.totals.failed if reference.totals else 0,
        screen=reference.screen,
    )


def shown(value: object) -> str:
    """A part of a contract in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _pooled(traces: tuple[Trace, ...]) -> dict[Statistic, float]:
    found = [trace.stats for trace in traces if trace.stats is not None]
    if not found:
        return {}
    whole: Stats | None = found[0] if len(found) == 1 else pooled(traces)
    if whole is not None:
        return {statistic: getattr(whole, statistic) for statistic in STATISTICS}
    return {"mean": sum(each.mean * each.count for each in found) / sum(each.count for each in found)}


def _with_decode_rate(values: dict[Key, float]) -> dict[Key, float]:
    """Add a request's own decode rate where only its reciprocal is there."""
    mean = values.get(("tpot_ms", ALL, "mean"))
    return {("decode_tokens_per_s", ALL, ""): 1000.0 / mean, **values} if mean else values


def _line(key: Key, subject: Side, reference: Side) -> Line:
    derived = key in subject.derived or key in reference.derived
    return Line(key, subject.values[key], reference.values[key], derived)


def _differences(subject: Workload | System, reference: Workload | System) -> Iterator[Difference]:
    """Yield each part that is not the same on both sides, and each that only one of them tells."""
    ours, theirs = _parts(subject), _parts(reference)
    for part in dict.fromkeys([*ours, *theirs]):
        mine, other = ours.get(part), theirs.get(part)
        # Where the requests are not told, that all of them were counted says nothing.
        if mine != other and not (part == "counted" and None in (mine, other)):
            yield Difference(part, mine, other)


def _parts(record: Workload | System) -> dict[str, Any]:
    """The parts of a contract that are told, those of a mapping one by one."""
    found: dict[str, Any] = {}
    for name, value in record.model_dump(mode="json").items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in value.items()}
        elif value is not None:
            found[name] = value
    if "requests" in found:
        found.setdefault("counted", found["requests"])
    return found
