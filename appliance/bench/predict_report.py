"""A prediction as text for a person and as JSON for programs. Both say of every figure that it is predicted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from appliance.bench import predict_data
from appliance.bench.predict import LACKS, Prompt, Step
from sm70_kernels.predict.parts import BOUND, GAP, KERNEL, LIBRARY, Basis, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from appliance.bench.predict_published import Published
    from appliance.bench.predict_subject import Subject

TITLES = {
    "dense": "dense layers",
    "dense_library": "dense layers' products by cuBLAS, weights expanded",
    "norm": "norms, rotary embedding and gates",
    "head": "output head, FP16 by cuBLAS",
    "gdn_ba": "b and a of the GDN layers, FP16 by cuBLAS",
    "attention": "full attention: KV once, products of queries, keys and values",
    "recurrence": "GDN: each request's state in and out, rows in and out",
    "collectives": "sums over the ranks, two a layer, and the gathering of logits",
    "draft": "draft: its weights and its window once",
    "draft_head": "output head once more, for the draft's tokens",
    "gaps": "gaps between so many kernels of a graph, or more",
}

MARKS: dict[Basis, str] = {KERNEL: "K", LIBRARY: "L", BOUND: "B", GAP: "G"}


@dataclass(frozen=True)
class Prediction:
    """All that was asked for. `accepted` tokens come of a round for each request; None where a draft's are unknown."""

    subject: Subject
    steps: tuple[Step, ...]
    prompts: tuple[Prompt, ...]
    accepted: float | None


def to_json(found: Prediction) -> dict[str, Any]:
    """The prediction with `schema` 1. Times of parts with a bound among them are least, rates most."""
    subject = found.subject
    return {
        "schema": 1,
        "provenance": "predicted",
        "profile": subject.name,
        "tensor_parallel": subject.ranks,
        "weights": subject.kind,
        "kv_bytes": subject.kv_bytes,
        "accepted": found.accepted,
        "decode": [
            {
                "context": step.context,
                "concurrency": step.concurrency,
                "rows": step.rows,
                "least_ms": _rounded(step.ms),
                "most_tokens_per_s": None if found.accepted is None else _rounded(step.tokens_per_s(found.accepted)),
                "parts": [_part(part) for part in step.parts],
                "published": [_published(each) for each in step.published],
            }
            for step in found.steps
        ],
        "prefill": [
            {
                "context": prompt.context,
                "chunks": prompt.chunks,
                "least_ms": _rounded(prompt.ms),
                "most_tokens_per_s": _rounded(prompt.tokens_per_s),
                "parts": [_part(part) for part in prompt.parts],
                "published": [_published(each) for each in prompt.published],
            }
            for prompt in found.prompts
        ],
        "lacks": list(LACKS),
        "figures": _figures(),
    }


def text(found: Prediction) -> str:
    """The prediction in tables, each part by its mark, and what the marks mean."""
    subject = found.subject
    lines = [
        f"{subject.name}, {subject.ranks} V100-SXM2. Every figure is predicted, but for those called published,",
        "which others measured. None was measured here. Parts without a kernel stand at the least time they can take.",
        "If the kernels' predictions, the library's rates and the gaps hold, a whole is no shorter than told, and a",
        "rate no higher.",
        "",
        "Predicted decode " + ("rounds" if subject.drafted else "steps") + ", ms on a rank",
        *_decode_table(found),
    ]
    if found.prompts:
        lines += ["", "Predicted prefill of one prompt alone, ms on a rank", *_prefill_table(found.prompts)]
    parts = [part for step in found.steps for part in step.parts]
    parts += [part for prompt in found.prompts for part in prompt.parts]
    lines += [
        "",
        *_legend(parts),
        *_published_lines((*found.steps, *found.prompts)),
        "",
        f"Not contained: {'; '.join(LACKS)}.",
    ]
    if found.accepted is None:
        lines.append("Tokens a second depend on how many of the draft's are accepted: --accepted N tells of N a round.")
    return "\n".join(lines)


def _decode_table(found: Prediction) -> list[str]:
    names = _names(part for step in found.steps for part in step.parts)
    heads = ["context", "requests", *(f"{name}:{MARKS[basis]}" for name, basis in names.items()), "least ms"]
    rows = []
    for step in found.steps:
        cells = [f"{step.context}", f"{step.concurrency}", *_cells(names, step.parts, 2), f"{step.ms:.2f}"]
        if found.accepted is not None:
            cells.append(f"{step.tokens_per_s(found.accepted):.1f}")
        cells.append(" / ".join(f"{each.step_ms:.2f}" for each in step.published if each.step_ms))
        rows.append(cells)
    rate = ["most tok/s"] if found.accepted is not None else []
    return _aligned([[*heads, *rate, "published ms"], *rows])


def _prefill_table(prompts: Sequence[Prompt]) -> list[str]:
    names = _names(part for prompt in prompts for part in prompt.parts)
    heads = ["context", "chunks", *(f"{name}:{MARKS[basis]}" for name, basis in names.items())]
    rows = [
        [
            f"{prompt.context}",
            f"{prompt.chunks}",
            *_cells(names, prompt.parts, 1),
            f"{prompt.ms:.1f}",
            f"{prompt.tokens_per_s:.0f}",
            " / ".join(f"{each.prefill_tokens_per_s:.0f}" for each in prompt.published if each.prefill_tokens_per_s),
        ]
        for prompt in prompts
    ]
    return _aligned([[*heads, "least ms", "most tok/s", "published tok/s"], *rows])


def _published_lines(found: Sequence[Step | Prompt]) -> Iterator[str]:
    """What the published figures are, each once."""
    every = dict.fromkeys(each.name for one in found for each in one.published)
    by_name = {each.name: each for one in found for each in one.published}
    if every:
        yield "Published, each under a contract of its own (config/references), parts by the nearest name of ours:"
    for name in every:
        each = by_name[name]
        told = [f"{each.step_ms:.2f} ms ({each.told})"] if each.step_ms else []
        told += [f"{part} {ms:g}" for part, ms in each.parts.items()]
        told += [f"prefill {each.prefill_tokens_per_s:g} tokens/s"] if each.prefill_tokens_per_s else []
        notes = "".join(f" {note}" for note in each.notes)
        yield f"   {each.context}, {each.concurrency}: {', '.join(told)}. {each.title}; {each.source}.{notes}"


def _legend(parts: Sequence[Part]) -> Iterator[str]:
    for basis, mark in MARKS.items():
        names = dict.fromkeys(part.name for part in parts if part.basis == basis)
        if names:
            yield f"{mark}: {basis}"
            yield from (f"   {name}: {TITLES[name]}" for name in names)


def _names(parts: Iterable[Part]) -> dict[str, Basis]:
    found = {part.name: part.basis for part in parts}
    return {name: found[name] for name in TITLES if name in found}


def _cells(names: Mapping[str, Basis], parts: Sequence[Part], digits: int) -> list[str]:
    ms = {part.name: part.ms for part in parts}
    return [f"{ms[name]:.{digits}f}" if name in ms else "-" for name in names]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _part(part: Part) -> dict[str, Any]:
    return asdict(part) | {"ms": _rounded(part.ms), "provenance": "predicted"}


def _published(each: Published) -> dict[str, Any]:
    return asdict(each) | {"provenance": "published"}


def _figures() -> dict[str, Any]:
    return predict_data.load().model_dump(mode="json")


def _rounded(value: float) -> float:
    return round(value, 4)
