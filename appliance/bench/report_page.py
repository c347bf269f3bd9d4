"""One self-contained HTML page of results, with plots: no script, nothing fetched, light or dark as its reader is."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from appliance.bench import plots, report
from appliance.bench.report import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from appliance.bench.result import Result

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --quiet: #57606a; --line: #d0d7de; --page: #ffffff;
  --alarm: #9a3412; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --quiet: #9da7b1; --line: #3d444d; --page: #0d1117; --alarm: #f0883e; }
}
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin-bottom: .4rem; }
nav ol { padding-left: 1.2rem; } a { color: inherit; }
table { border-collapse: collapse; margin: .4rem 0 1rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
.figures td, .figures th + th { text-align: right; white-space: nowrap; }
.banner { border: 2px solid var(--alarm); color: var(--alarm); padding: .6rem .9rem; font-weight: 600; }
figure { margin: 1rem 0; background: #ffffff; border: 1px solid var(--line); }
figure svg { display: block; width: 100%; height: auto; }
footer { color: var(--quiet); margin-top: 3rem; font-size: .85rem; }
"""


def page(results: Sequence[Result], roofline: Mapping[str, Any] | None = None, notes: Sequence[str] = ()) -> str:
    """Return the page. `roofline` is what `python -m sm70_kernels.predict --json` prints; `notes` go to the end."""
    return "\n".join(_page(results, roofline, notes)) + "\n"


def _page(results: Sequence[Result], roofline: Mapping[str, Any] | None, notes: Sequence[str]) -> Iterable[str]:
    title = report.title(results[0]) if len(results) == 1 else f"{len(results)} benchmark results"
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="icon" href="data:,">'
    yield f"<style>{STYLE}</style></head><body><main>"
    yield f"<h1>{escape(title)}</h1>"
    if len(results) > 1:
        links = (
            f'<li><a href="#result-{number}">{escape(report.title(one))}</a></li>'
            for number, one in enumerate(results, 1)
        )
        yield f'<nav aria-label="results"><ol>{"".join(links)}</ol></nav>'
    sound = [one for one in results if not one.failures]
    yield from _figures([plots.throughput(sound, "input_tokens"), plots.throughput(sound, "concurrency")])
    for number, result in enumerate(results, 1):
        yield from _result(result, number, alone=len(results) == 1)
    if roofline is not None and (drawn := plots.rooflines(roofline)):
        yield '<section><h2>Kernels</h2><p class="banner">Predicted: no figure of this plot was measured on a V100.</p>'
        yield from _figures([drawn])
        yield "</section>"
    if len(sound) < len(results):
        notes = [*notes, "Results that are not sound are left out of the plots of throughput."]
    notes_text = "".join(f"<p>{escape(note)}</p>" for note in notes)
    yield f"<footer>{notes_text}<p>Written by `appliance bench`; the JSON beside it has every sample.</p></footer>"
    yield "</main></body></html>"


def _result(result: Result, number: int, *, alone: bool) -> Iterable[str]:
    told = report.section(result)
    yield f'<section id="result-{number}">'
    if not alone:
        yield f"<h2>{escape(told.title)}</h2>"
    if told.banner:
        yield f'<p class="banner" role="alert">{escape(told.banner)}</p>'
    yield from _figures([plot(result, number) for plot in (plots.steps, plots.latencies, plots.chunks)])
    for title, part in told.parts:
        yield f"<h3>{escape(title)}</h3>"
        if isinstance(part, Table):
            yield from _table(part)
        else:
            yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in part)}</ul>"
    yield "</section>"


def _figures(drawn: Sequence[str | None]) -> Iterable[str]:
    for one in drawn:
        if one:
            yield f"<figure>{one}</figure>"


def _table(table: Table) -> Iterable[str]:
    kind = ' class="figures"' if table.figures else ""
    yield f'<div class="wide"><table{kind}>'
    if any(table.head):
        yield f"<thead><tr>{''.join(f'<th scope=col>{escape(text)}</th>' for text in table.head)}</tr></thead>"
    yield "<tbody>"
    for first, *rest in table.rows:
        yield f"<tr><th scope=row>{escape(first)}</th>{''.join(f'<td>{escape(text)}</td>' for text in rest)}</tr>"
    yield "</tbody></table></div>"
