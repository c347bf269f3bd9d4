"""The 32K serving contract, on vLLM's own `bench serve`: run as a child, its detailed result read, its counts checked.

vLLM's inter-token latencies are intervals between a request's chunks. They have modes: undisturbed decode steps, and
gaps in which somebody else's prompt was prefilled; one mean over both describes neither.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.bench import statistics
from appliance.bench.options import Load
from appliance.bench.result import Counted, Totals
from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType

    from appliance.bench.client import Target
    from appliance.bench.progress import Bar, Progress
    from appliance.bench.result import Rate, Trace

CONTRACT = Load(32768, 256, 32, 128, 1, 1234, {"temperature": 0.0, "ignore_eos": True}, cached=False)
"""Random prompts, all sent at once, temperature 0, no end of text: the published 32K criterion."""

SCREEN_REQUESTS = 40
"""The published shortened screen's."""

MODULE = "appliance.bench.vllm_bench_serve"

WRONG_OUTPUT = "another number of output tokens than was asked for"
WRONG_INPUT = "a prompt of another length than was asked for"
SERVER_INPUT = "prompt tokens that the engine counted otherwise than the client"

_DONE = re.compile(rb"(\d+)/\d+ \[")
"""The end of vLLM's progress bar."""

TAIL = 4000


@dataclass(frozen=True)
class Served:
    """What vLLM's benchmark said, and how the engine's own counters grew (empty: they could not be read)."""

    load: Load
    raw: dict[str, Any]
    counters: dict[str, float]


def departures(load: Load, cached: int | None = None) -> str | None:
    """Return what makes a run a screen and no acceptance run: all in which it departs from the contract.

    `cached` prompt tokens came out of the prefix cache; the contract is of prompts that are computed.
    """
    found = []
    if load.requests != CONTRACT.requests:
        found.append(f"{load.requests} of the contract's {CONTRACT.requests} requests")
    for what, value, wanted in (
        ("input tokens", load.input_tokens, CONTRACT.input_tokens),
        ("output tokens", load.output_tokens, CONTRACT.output_tokens),
        ("requests at a time", load.concurrency, CONTRACT.concurrency),
        ("as seed", load.seed, CONTRACT.seed),
    ):
        if value != wanted:
            found.append(f"{value} instead of {wanted} {what}")
    if load.sampling != CONTRACT.sampling:
        found.append("other sampling than the contract's")
    if cached:
        found.append(f"{cached} prompt tokens out of the prefix cache instead of 0")
    return ", ".join(found) or None


def command(target: Target, model: str, tokenizer: Path, load: Load, folder: Path) -> list[str]:
    """Return the child's argv; the key is in no word of it."""
    sampling = {name: value for name, value in load.sampling.items() if name != "ignore_eos"}
    words = [sys.executable, "-m", MODULE, "--backend", "openai", "--base-url", target.url]
    words += ["--model", model, "--served-model-name", model, "--tokenizer", str(tokenizer)]
    words += ["--dataset-name", "random", "--random-input-len", str(load.input_tokens)]
    words += ["--random-output-len", str(load.output_tokens), "--random-range-ratio", "0", "--seed", str(load.seed)]
    words += ["--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency), "--request-rate", "inf"]
    words += ["--extra-body", json.dumps(sampling), "--ignore-eos"]
    return [*words, "--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "result.json"]


def child_environment(target: Target, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment: the key where vLLM looks for it, no proxy, no network, no run directory."""
    dropped = {"http_proxy", "https_proxy", "all_proxy", "openai_api_key", "appliance_run_dir"}
    kept = {name: value for name, value in environ.items() if name.lower() not in dropped}
    kept |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if target.key:
        kept["OPENAI_API_KEY"] = target.key
    return kept


def measure(
    target: Target, model: str, tokenizer: Path, load: Load, progress: Progress, silence_s: float
) -> dict[str, Any]:
    """Run vLLM's benchmark and return its result.

    Raises CheckError where it cannot run here, fails, or finishes no request for `silence_s` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="appliance-bench-") as scratch:
        folder = Path(scratch)
        with (
            (folder / "output").open("wb") as output,
            _ending_by_signal(),
            subprocess.Popen(
                command(target, model, tokenizer, load, folder),
                env=child_environment(target, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                cwd=folder,
            ) as child,
            progress.bar(f"{load.requests} requests of {load.input_tokens}/{load.output_tokens}", load.requests) as bar,
        ):
            try:
                said = _follow(child, bar, silence_s)
                status = child.wait()
            finally:
                if child.poll() is None:
                    child.kill()
        file = folder / "result.json"
        if status or not file.exists():
            raise CheckError(_why(said, status))
        return dict(json.loads(file.read_text(encoding="utf-8")))


@contextmanager
def _ending_by_signal() -> Iterator[None]:
    """Let SIGTERM end this process by an exception, so that the child does not go on without it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_signal: int, _frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(child: subprocess.Popen[bytes], bar: Bar, silence_s: float) -> bytes:
    """Read the child's standard error to its end; return its last part."""
    assert child.stderr is not None
    tail, done, moved = b"", 0, time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(child.stderr, selectors.EVENT_READ)
        while True:
            if selector.select(timeout=1.0):
                read = os.read(child.stderr.fileno(), 1 << 16)
                if not read:
                    return tail
                tail = (tail + read)[-TAIL:]
                if found := _DONE.findall(tail):
                    if int(found[-1]) != done:
                        done, moved = int(found[-1]), time.monotonic()
                    bar.reach(done)
            if time.monotonic() - moved > silence_s:
                raise CheckError(
                    f"no request was finished for {silence_s:.0f} s, {done} before that; `appliance probe live` may "
                    "say why, --timeout allows longer"
                )


def _why(said: bytes, status: int) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").replace("\r", "\n").splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    if re.search(r"No module named '?vllm['.]", last):
        return (
            "vLLM is not installed here, and with it its benchmark; run this in the engine's environment or container"
        )
    return f"vLLM's benchmark ended with status {status}: {last[:300]}"


def failures(served: Served) -> tuple[Counted, ...]:
    """Return the requests that failed or came with wrong counts, by reason, and where the engine counted otherwise."""
    found = Counter(reason for reason in _reasons(served) if reason is not None)
    counted = [Counted(reason=reason, count=count, unit="requests") for reason, count in found.most_common()]
    asked = served.load.input_tokens * served.load.requests
    told = served.counters.get("prompt_tokens")
    if told is not None and not found and round(told) != asked:
        counted.append(Counted(reason=SERVER_INPUT, count=abs(round(told) - asked), unit="tokens"))
    return tuple(counted)


def _reasons(served: Served) -> list[str | None]:
    raw, load = served.raw, served.load
    found: list[str | None] = []
    for error, given, came in zip(raw["errors"], raw["input_lens"], raw["output_lens"], strict=True):
        if error:
            found.append([line.strip() for line in error.splitlines() if line.strip()][-1][:200])
        elif not came:
            # vLLM gives no error where a status has no reason phrase.
            found.append("failed without a reason")
        elif came != load.output_tokens:
            found.append(WRONG_OUTPUT)
        else:
            found.append(WRONG_INPUT if given != load.input_tokens else None)
    # What it did not even send would be missing from the lists.
    return found + ["not sent"] * (load.requests - len(found))


def totals(served: Served) -> Totals:
    """Return what went in and came out of the requests whose counts are right."""
    good = [index for index, reason in enumerate(_reasons(served)) if reason is None]
    hits = served.counters.get("prefix_cache_hits")
    return Totals(
        requests=served.load.requests,
        completed=len(good),
        failed=served.load.requests - len(good),
        duration_s=served.raw["duration"],
        input_tokens=sum(served.raw["input_lens"][index] for index in good),
        output_tokens=sum(served.raw["output_lens"][index] for index in good),
        cached_tokens=None if hits is None else round(hits),
    )


def rates(whole: Totals) -> dict[Rate, float]:
    """Return the rates of the good requests over the whole time, as vLLM does."""
    if not whole.completed:
        return {}
    return {
        "output_tokens_per_s": whole.output_tokens / whole.duration_s,
        "total_tokens_per_s": (whole.input_tokens + whole.output_tokens) / whole.duration_s,
        "requests_per_s": whole.completed / whole.duration_s,
    }


def result_traces(served: Served) -> tuple[Trace, ...]:
    """Return the distributions in milliseconds over the good requests, inter-token latencies by mode too."""
    raw = served.raw
    good = [index for index, reason in enumerate(_reasons(served)) if reason is None]
    between = [1000 * value for index in good for value in raw["itls"][index]]
    first = [1000 * raw["ttfts"][index] for index in good]
    whole = [1000 * (raw["ttfts"][index] + sum(raw["itls"][index])) for index in good]
    return (
        statistics.trace("itl_ms", "1", between),
        *statistics.by_mode("itl_ms", "1", between),
        statistics.trace("ttft_ms", "1", first),
        statistics.trace("e2e_ms", "1", whole),
    )


def notes(served: Served) -> tuple[str, ...]:
    """Return what a reader must know beside the figures."""
    found = ["inter-token latencies are intervals between chunks, as vLLM's benchmark takes them"]
    if not served.counters:
        found.append("the engine's counters could not be read, so that its own count of prompt tokens is not checked")
    if hits := round(served.counters.get("prefix_cache_hits", 0)):
        found.append(
            f"WARNING: {hits} prompt tokens came out of the prefix cache: an earlier run had the same seed; restart "
            "the engine for cold prompts"
        )
    if preempted := round(served.counters.get("num_preemptions", 0)):
        found.append(f"{preempted} preemptions: the KV cache was too small for this load")
    return tuple(found)


COUNTERS = ("prompt_tokens", "generation_tokens", "prefix_cache_hits", "num_preemptions")
"""Of vLLM's metrics, without prefix and `_total`."""


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return how the counters grew; empty where one of them was not read, or began anew with another engine."""
    if not before or any(value < before.get(name, 0.0) for name, value in after.items()):
        return {}
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


_LINE = re.compile(r"^vllm:(\w+?)_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def counters(metrics: str) -> dict[str, float]:
    """Return vLLM's counters of that name in a text of Prometheus metrics, summed over their labels."""
    found: dict[str, float] = {}
    for name, value in _LINE.findall(metrics):
        if name in COUNTERS:
            found[name] = found.get(name, 0.0) + float(value)
    return found
