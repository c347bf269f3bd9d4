"""What a person reads of results: sections of tables and lines, written as Markdown here and as a page elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.bench.result import pooled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from appliance.bench.result import Counted, Environment, Metric, Rate, Result, Stats, Trace

METRICS: dict[Metric, str] = {
    "decode_step_ms": "stable decode step, ms",
    "tpot_ms": "time per token, ms",
    "itl_ms": "inter-token latency, ms",
    "chunk_interval_ms": "chunk interval, ms",
    "ttft_ms": "time to first token, ms",
    "prefill_step_ms": "prefill step, ms",
    "e2e_ms": "whole request, ms",
}
"""In the order shown."""

RATES: dict[Rate, str] = {
    "output_tokens_per_s": "output tokens/s",
    "input_tokens_per_s": "input tokens/s",
    "total_tokens_per_s": "tokens/s, input and output",
    "prefill_tokens_per_s": "prefill tokens/s",
    "decode_tokens_per_s": "decode tokens/s of a request",
    "requests_per_s": "requests/s",
}


@dataclass(frozen=True)
class Table:
    """Rows of text under a head. Columns after the first hold figures where `figures` says so."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: bool = False


@dataclass(frozen=True)
class Section:
    """One result. `banner` is what must be read before any figure."""

    title: str
    banner: str | None
    parts: tuple[tuple[str, Table | tuple[str, ...]], ...] = field(default=())


def section(result: Result) -> Section:
    """Return a result as a reader needs it: the contract first, then figures, then what is not in them."""
    parts: list[tuple[str, Table | tuple[str, ...]]] = [("Figures", _figures(result.traces))]
    if modes := _modes(result.traces):
        parts.append(("Inter-token latency by mode", modes))
    if rates := _rates(result):
        parts.append(("Rates", rates))
    if result.exclusions:
        parts.append(("Not in the figures", _counted(result.exclusions)))
    if result.failures:
        parts.append(("Failed", _counted(result.failures)))
    if result.notes:
        parts.append(("Notes", result.notes))
    parts += [("Contract", _contract(result)), ("Taken on", _environment(result.environment))]
    return Section(title(result), banner(result), tuple(parts))


def title(result: Result) -> str:
    """Return what a result is called; of a screen, and of one that is not sound, its name says so."""
    marks = [mark for mark, holds in (("SCREEN", result.screen), ("NOT SOUND", result.failures)) if holds]
    return f"{result.title} [{', '.join(marks)}]" if marks else result.title


def banner(result: Result) -> str | None:
    """Return what must be read before any figure: that it is a screen, that something failed."""
    found = []
    if result.screen:
        found.append(f"SCREEN, no acceptance run: {result.screen}.")
    if result.failures:
        found.append(f"NOT SOUND: {'; '.join(f'{number(one)}: {one.reason}' for one in result.failures)}.")
    return " ".join(found) or None


def number(counted: Counted) -> str:
    """`1 request`, `3 requests`."""
    return f"{counted.count} {counted.unit.removesuffix('s') if counted.count == 1 else counted.unit}"


def _figures(traces: Sequence[Trace]) -> Table:
    rows = []
    for metric, name in METRICS.items():
        mine = [trace for trace in traces if trace.metric == metric and trace.mode == "all"]
        rows += [(f"{name}, repeat {trace.label}" if len(mine) > 1 else name, *_stats(trace.stats)) for trace in mine]
        if len(mine) > 1 and (together := pooled(mine)):
            rows.append((f"{name}, pooled", *_stats(together)))
    return Table(("", "mean", "p50", "p90", "p99", "count"), tuple(rows), figures=True)


def _modes(traces: Sequence[Trace]) -> Table | None:
    rows = [(trace.mode, f"{100 * trace.share:.3f} %", *_stats(trace.stats)) for trace in traces if trace.mode != "all"]
    return Table(("", "share", "mean", "p50", "p90", "p99", "count"), tuple(rows), figures=True) if rows else None


def _stats(stats: Stats | None) -> tuple[str, ...]:
    if stats is None:
        return ("–", "–", "–", "–", "0")
    return (*(f"{value:.3f}" for value in (stats.mean, stats.p50, stats.p90, stats.p99)), str(stats.count))


def _rates(result: Result) -> Table | None:
    alone = ", stable decode steps alone" if result.kind == "decode" else ""
    rows = [(name + alone, f"{result.rates[rate]:.3f}") for rate, name in RATES.items() if rate in result.rates]
    if result.acceptance_length is not None:
        rows.append(("tokens a round of speculation", f"{result.acceptance_length:.3f}"))
    if (whole := result.totals) is not None:
        rows += [
            ("requests", f"{whole.requests}"),
            ("completed", f"{whole.completed}"),
            ("failed", f"{whole.failed}"),
            ("duration", f"{whole.duration_s:.2f} s"),
            ("input tokens", f"{whole.input_tokens}"),
            ("output tokens", f"{whole.output_tokens}"),
            (
                "of the input out of the prefix cache",
                "not told" if whole.cached_tokens is None else f"{whole.cached_tokens}",
            ),
        ]
    return Table(("", ""), tuple(rows), figures=True) if rows else None


def _counted(counted: Iterable[Counted]) -> Table:
    return Table(("", "count"), tuple((one.reason, number(one)) for one in counted), figures=True)


def _contract(result: Result) -> Table:
    told = {**result.contract.workload.model_dump(mode="json"), **result.contract.system.model_dump(mode="json")}
    return _pairs({name: value for name, value in told.items() if value is not None})


def _environment(environment: Environment) -> Table:
    told = environment.model_dump(mode="json", exclude={"clocks", "routes", "topology"})
    rows: dict[str, Any] = {name: value for name, value in told.items() if value}
    for name in ("image", "kernel_sha256"):
        rows.setdefault(name, "not told")
    rows["topology"] = "; ".join(environment.topology) or "not told"
    rows["routes"] = _routes(environment.routes)
    rows["clocks"] = "; ".join(map(_clock, environment.clocks)) or "no GPU was asked"
    return _pairs(rows)


def _routes(routes: dict[str, str]) -> str:
    """The routes by their state: of forty lines that say the same nobody reads one."""
    by_state: dict[str, list[str]] = {}
    for name, state in routes.items():
        by_state.setdefault(state, []).append(name)
    if len(by_state) == 1:
        return f"all {len(routes)} {next(iter(by_state))}"
    return "; ".join(f"{state}: {', '.join(names)}" for state, names in by_state.items()) or "not told"


def _clock(clocks: Any) -> str:  # noqa: ANN401 - a pydantic model's fields
    def unit(value: float | None, text: str) -> str:
        return f"{'?' if value is None else f'{value:.0f}'} {text}"

    words = [f"GPU{clocks.gpu} SM {unit(clocks.sm_mhz, 'MHz')}", f"memory {unit(clocks.memory_mhz, 'MHz')}"]
    words += [f"limit {unit(clocks.power_limit_w, 'W')}", f"at most {unit(clocks.temperature_c, '°C')}"]
    return ", ".join(words) + f", throttled by {', '.join(clocks.throttle) or 'nothing'}"


def _pairs(told: dict[str, Any]) -> Table:
    return Table(("", ""), tuple((name.replace("_", " "), _value(value)) for name, value in told.items()))


def _value(value: Any) -> str:  # noqa: ANN401 - what JSON holds
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(part)}" for name, part in value.items())
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def markdown(results: Sequence[Result]) -> str:
    """Return all results as one Markdown text."""
    return "\n".join(line for result in results for line in _markdown(section(result)))


def _markdown(one: Section) -> Iterable[str]:
    yield f"# {_escape(one.title)}"
    yield ""
    if one.banner:
        yield f"> **{_escape(one.banner)}**"
        yield ""
    for title, part in one.parts:
        yield f"## {title}"
        yield ""
        if isinstance(part, Table):
            yield "| " + " | ".join(map(_escape, part.head)) + " |"
            yield "|" + "|".join([" --- ", *([" ---: " if part.figures else " --- "] * (len(part.head) - 1))]) + "|"
            for row in part.rows:
                yield "| " + " | ".join(map(_escape, row)) + " |"
        else:
            for line in part:
                yield f"- {_escape(line)}"
        yield ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
