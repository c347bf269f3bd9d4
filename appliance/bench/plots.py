"""Plots of results as inline SVG: text stays text, ids are the plot's own, nothing is fetched from anywhere."""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from appliance.bench.result import Result, Trace

WIDTH, HEIGHT = 8.0, 3.6
"""Inches."""

COLOURS = ("#0b6e99", "#c4561c", "#4c7a34", "#7a4b8f", "#9a7b12", "#7d2e46")
"""Told apart by people who see few colours; line styles differ too."""

STYLES = ("-", "--", "-.", ":")

BINS = 60

LEAST = 0.1
"""Milliseconds; nothing shorter is told apart on a logarithmic axis."""


def steps(result: Result, number: int = 1) -> str | None:
    """The distribution of the decode steps of a page's result `number`, a line for each repeat."""
    return _histogram(result, number, "decode_step_ms", "Stable decode steps", "step, ms", "steps")


def latencies(result: Result, number: int = 1) -> str | None:
    """The distribution of inter-token latencies over logarithmic time, with the borders between its modes."""

    def borders(axes: Any) -> None:  # noqa: ANN401 - matplotlib's axes
        for at, text in ((100, "100 ms"), (4000, "4 s")):
            axes.axvline(at, color="#777777", linewidth=0.8, linestyle=":")
            axes.text(at, 1.01, text, transform=axes.get_xaxis_transform(), ha="center", fontsize=8, color="#555555")

    return _histogram(
        result,
        number,
        "itl_ms",
        "Inter-token latency",
        "interval between chunks, ms",
        "intervals",
        more=borders,
        logarithmic=True,
    )


def chunks(result: Result, number: int = 1) -> str | None:
    """The distribution of chunk intervals of a stream."""
    return _histogram(result, number, "chunk_interval_ms", "Chunk intervals", "interval, ms", "intervals")


def throughput(results: Sequence[Result], along: str) -> str | None:
    """Output tokens a second over `input_tokens` or `concurrency`; None where no two results differ in it alone."""
    other = "concurrency" if along == "input_tokens" else "input_tokens"
    lines: dict[tuple[str, int, str], list[tuple[int, float]]] = {}
    for result in results:
        rate = result.rates.get("output_tokens_per_s")
        at, fixed = (getattr(result.contract.workload, name) for name in (along, other))
        if rate is not None and at is not None and fixed is not None:
            screen = ", screen" if result.screen else ""
            kind = ("stable decode steps alone" if result.kind == "decode" else result.kind) + screen
            lines.setdefault((kind, fixed, _rest(result)), []).append((at, rate))
    lines = {key: sorted(points) for key, points in lines.items() if len({at for at, _ in points}) > 1}
    if not lines:
        return None
    what = {"input_tokens": "context, prompt tokens", "concurrency": "requests at a time"}[along]
    fixed_text = {"input_tokens": "at a time", "concurrency": "prompt tokens"}[along]

    def draw(axes: Any) -> None:  # noqa: ANN401
        for number, ((kind, fixed, rest), points) in enumerate(sorted(lines.items())):
            alike = [key for key in sorted(lines) if key[:2] == (kind, fixed)]
            # The sections of a page tell what else differs; a number suffices to keep such lines apart.
            which = f", {alike.index((kind, fixed, rest)) + 1} of {len(alike)}" if len(alike) > 1 else ""
            label = f"{kind}, {fixed} {fixed_text}{which}"
            axes.plot(*zip(*points, strict=True), marker="o", label=label, **_look(number))
        ticks = sorted({at for points in lines.values() for at, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(0, 1.1 * max(rate for points in lines.values() for _, rate in points))
        axes.set_xlabel(what)
        axes.set_ylabel("output tokens/s")
        axes.legend(frameon=False, fontsize=8)

    return svg(f"throughput-{along}", f"Throughput by {what.split(',')[0]}", draw)


def _rest(result: Result) -> str:
    """What else two results must share to be points of one line."""
    asked = result.contract.workload.model_dump_json(exclude={"input_tokens", "concurrency", "requests", "counted"})
    return f"{result.environment.profile} {asked} {result.contract.system.model_dump_json()}"


def rooflines(model: Mapping[str, Any]) -> str | None:
    """Each kernel's predicted time beside its predicted floor, for the largest batch that the model was asked for."""
    rows = [row for row in model.get("predictions", ()) if row.get("us") and row.get("roofline_us")]
    if not rows:
        return None
    most = max(row["m"] for row in rows)
    rows = sorted((row for row in rows if row["m"] == most), key=lambda row: -row["us"] * row["launches_a_step"])

    times = [row["us"] * row["launches_a_step"] / 1000 for row in rows]
    floors = [row["roofline_us"] * row["launches_a_step"] / 1000 for row in rows]

    def draw(axes: Any) -> None:  # noqa: ANN401
        places = range(len(rows))
        axes.barh(places, times, height=0.72, color="#c9dde6", label="predicted time")
        axes.barh(places, floors, height=0.36, color=COLOURS[0], label="predicted floor")
        for place, row in zip(places, rows, strict=True):
            text = f" {row['roofline_us'] / row['us']:.0%} of the roofline, bound: {row['bound']}"
            axes.text(times[place], place, text, va="center", fontsize=7, color="#333333")
        axes.set_yticks(places, [f"{row['part']} ×{row['launches_a_step']}" for row in rows], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlim(right=1.6 * max(times))
        axes.set_xlabel(f"ms in a decode step of {most} rows on a V100, predicted")
        axes.legend(frameon=False, fontsize=8, loc="lower right")

    return svg("roofline", "Predicted roofline of each kernel", draw, height=max(HEIGHT, 0.24 * len(rows) + 1))


def _histogram(
    result: Result,
    number: int,
    metric: Any,  # noqa: ANN401 - one of the result's literals
    title: str,
    across: str,
    count: str,
    *,
    more: Callable[[Any], None] | None = None,
    logarithmic: bool = False,
) -> str | None:
    traces = [trace for trace in result.of(metric) if trace.samples]
    if not traces:
        return None
    edges = _edges([sample for trace in traces for sample in trace.samples], logarithmic=logarithmic)

    def draw(axes: Any) -> None:  # noqa: ANN401
        for place, trace in enumerate(traces):
            # What came in one read lies at zero, below any logarithm: it goes into the first bin.
            shown = [max(sample, edges[0]) for sample in trace.samples]
            axes.hist(shown, bins=edges, histtype="step", label=_label(trace), **_look(place))
        if logarithmic:
            axes.set_xscale("log")
            axes.set_yscale("symlog", linthresh=1)
        if more is not None:
            more(axes)
        axes.set_xlabel(across)
        axes.set_ylabel(count)
        axes.legend(frameon=False, fontsize=8)

    return svg(f"{metric}-{number}", title, draw)


def _label(trace: Trace) -> str:
    assert trace.stats is not None
    return f"repeat {trace.label}: mean {trace.stats.mean:.3f}, p50 {trace.stats.p50:.3f}, p99 {trace.stats.p99:.3f}"


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number % len(STYLES)], "linewidth": 1.6}


def _edges(samples: Sequence[float], *, logarithmic: bool) -> list[float]:
    least, most = min(samples), max(samples)
    if logarithmic:
        least = max(least, LEAST)
        most = max(most, least * 1.1)
        step = math.log(most / least) / BINS
        return [least, *(least * math.exp(step * number) for number in range(1, BINS)), most]
    if most <= least:
        return [least - 0.5, least + 0.5]
    return [least + (most - least) * number / BINS for number in range(BINS + 1)]


def svg(name: str, title: str, draw: Callable[[Any], None], height: float = HEIGHT) -> str:
    """Return a figure as an `<svg>` element with a title for who cannot see it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(title, loc="left", fontsize=11, pad=14)
        draw(axes)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(written.getvalue(), name, title)


def _inline(text: str, name: str, title: str) -> str:
    """Return the element alone, its ids prefixed with `name`: several share one page."""
    element = text[text.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'href="#', f'href="#{name}-', element)
    element = re.sub(r"url\(#", f"url(#{name}-", element)
    element = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", element, count=1)
    element = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", element, count=1)
    return re.sub(r"<svg", f'<svg role="img" aria-label="{title}"', element, count=1)
