"""What others measured of a profile's model on as many V100s, out of config/references, to go beside predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.bench import reference

if TYPE_CHECKING:
    from appliance.bench.predict_subject import Subject
    from appliance.bench.reference import Reference

PARTS = {
    "fp8_projection": "dense",
    "gdn_conv": "recurrence",
    "communication": "collectives",
    "full_attention": "attention",
    "elementwise_layout": "norm",
}
"""Figures of references that are milliseconds of a step, and the part of ours that comes closest."""


@dataclass(frozen=True)
class Published:
    """One reference. `step_ms` is a decode step's or a round's, as measured or as its rate gives it; None: not told.

    Contracts are the references' own and differ from the profile's: other chunks, other clocks, longer contexts at the
    end of a run than at its start.
    """

    name: str
    title: str
    source: str
    context: int
    concurrency: int
    step_ms: float | None
    told: str
    """What the step was told as."""
    prefill_tokens_per_s: float | None
    parts: dict[str, float]
    """Milliseconds by the names of our parts."""
    notes: tuple[str, ...]


def of(subject: Subject) -> tuple[Published, ...]:
    """Return the references of the same weights, KV width, ranks and speculation, whose context is told.

    Raises ConfigurationError for a damaged reference file.
    """
    found = (_published(name, each, subject) for name, each in reference.load_all().items() if _same(each, subject))
    return tuple(each for each in found if each)


def _same(each: Reference, subject: Subject) -> bool:
    workload, system = each.contract.workload, each.contract.system
    # What we measure one day is not published by others; serving loads have prompts and decoding in one step.
    if each.provenance != "published" or workload.measured == "serving":
        return False
    if not workload.speculation or not system.kv_cache_dtype:
        return False
    method, tokens = workload.speculation.method, workload.speculation.tokens
    return (
        system.hardware.removeprefix("Tesla ").startswith("V100")
        and system.tensor_parallel == subject.ranks
        and system.quantization == subject.kind
        and (1 if system.kv_cache_dtype.startswith("fp8") else 2) == subject.kv_bytes
        and (method, tokens) == ((subject.method or "none"), subject.drafted)
    )


def _published(name: str, each: Reference, subject: Subject) -> Published | None:
    workload = each.contract.workload
    if workload.input_tokens is None or workload.concurrency is None:
        return None
    step_ms, told = _step(each, workload.concurrency, drafted=bool(subject.drafted))
    prefill = each.rates.get("prefill_tokens_per_s") if workload.concurrency == 1 else None
    if step_ms is None and prefill is None:
        return None
    parts = {PARTS[key]: figure.value for key, figure in each.figures.items() if key in PARTS and figure.unit == "ms"}
    return Published(
        name=name,
        title=each.title,
        source=each.source,
        context=workload.input_tokens,
        concurrency=workload.concurrency,
        step_ms=step_ms,
        told=told,
        prefill_tokens_per_s=prefill,
        parts=parts,
        notes=each.notes,
    )


def _step(each: Reference, concurrency: int, *, drafted: bool) -> tuple[float | None, str]:
    if drafted:
        # Times a token and rates hang on what was accepted; only a round's own time can stand beside a round.
        figure = each.figures.get("round")
        told = figure.value if figure and figure.unit == "ms" else None
        return told, "round" if told else ""
    for metric, words in (("decode_step_ms", "mean step"), ("tpot_ms", "mean time a token")):
        spread = each.times.get(metric)  # type: ignore[call-overload]  # both are names of Metric
        if spread and spread.mean:
            return spread.mean, words
    rate = each.rates.get("decode_tokens_per_s")
    return (1e3 * concurrency / rate, f"{rate:g} tokens/s") if rate else (None, "")
