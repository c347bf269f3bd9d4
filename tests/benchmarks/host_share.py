"""Measures the Python of ours on a worker's critical path in a decode step: at most 1 ms.

`python -m tests.benchmarks.host_share [--json] [--sequences N] [--steps N]` serves the tiny model of
`tests/models_made/tiny_qwen.py` on the CPU engine through the plugin, in this process, and profiles the worker's
`execute_model` and `sample_tokens` step by step once every request is decoding. Ours is the time in functions of
`appliance` and `sm70_kernels`, and in what they call of torch, numpy and Python (`profile_share.py`). The operators are
replaced by stand-ins that compute nothing, because on a CPU they would be plain torch; what a launch costs on a GPU is
not in the figure. Times are the processor's for this thread. Every other step is not profiled: a profile says what part
of a step is ours, and the steps without one how long a step is.

Two figures: with every layer's Python, as in an eager step, and without the model's forward, as where one CUDA graph is
replayed for it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.profile_share import Kind, profiling_cost, shares

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT_MS = 1.0
PROMPT = 24
WARM_UP = 8
"""Steps after the prompts that are not timed."""
SHOWN = 12

ROOT = Path(__file__).resolve().parents[2]
OURS = (f"{ROOT}/appliance/", f"{ROOT}/kernels/")


@dataclass(frozen=True)
class Figure:
    """Milliseconds of ours in a decode step; `functions` has the greatest shares of the median's kind, a step."""

    name: str
    steps: int
    step_ms: float
    """The worker's whole part of a step, the stand-ins' included."""
    median_ms: float
    max_ms: float
    limit_ms: float
    functions: dict[str, float]

    @property
    def within(self) -> bool:
        """Whether the median keeps the limit."""
        return self.median_ms <= self.limit_ms


def kind(file: str) -> Kind:
    """Say whose a file is."""
    if file.startswith(OURS):
        return "ours"
    return "theirs" if "/vllm/" in file or file == __file__ else "neither"


def figure(name: str, steps: Sequence[dict[str, float]], seconds: Sequence[float]) -> Figure:
    """Return the figure of profiled steps, each with the part of ours by function, and the seconds of others."""
    step_ms = 1e3 * statistics.median(seconds)
    totals = [sum(step.values()) * step_ms for step in steps]
    functions: Counter[str] = Counter()
    for step in steps:
        functions.update(step)
    mean = {_short(label): part * step_ms / len(steps) for label, part in functions.most_common(SHOWN)}
    return Figure(name, len(steps), step_ms, statistics.median(totals), max(totals), LIMIT_MS, mean)


def _short(label: str) -> str:
    return label.removeprefix(f"{ROOT}/")


class Profiler:
    """Profiles the worker's calls of a step together."""

    def __init__(self) -> None:
        self.on = False
        self.without_forward = False
        self.seconds: list[float] = []
        self._taken = 0.0
        self.steps: list[dict[str, float]] = []
        self.cost = profiling_cost(time.thread_time)
        self._profile: cProfile.Profile | None = None

    def begin(self, without_forward: bool) -> None:
        """Begin a figure, with the model's forward or without."""
        self.without_forward = without_forward
        self.steps, self.seconds, self._taken = [], [], 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Profile or time one call of the worker; the first of a step begins it."""
        if not self.on:
            began = time.thread_time()
            yield
            self._taken += time.thread_time() - began
            return
        # Processor time of this thread: on a busy machine others run in between.
        self._profile = self._profile or cProfile.Profile(time.thread_time)
        self._profile.enable()
        try:
            yield
        finally:
            self._profile.disable()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Leave the model's forward out, where that is asked for."""
        if not self.without_forward:
            yield
            return
        out, began = self._profile, time.thread_time()
        if out:
            out.disable()
        try:
            yield
        finally:
            self._taken -= time.thread_time() - began
            if out:
                out.enable()

    def end_step(self) -> None:
        """Take what the step has come to."""
        if self._profile is not None:
            self.steps.append(shares(self._profile.getstats(), kind, self.cost))
        else:
            self.seconds.append(self._taken)
        self._profile, self._taken = None, 0.0


def wrap(profiler: Profiler) -> None:
    """Let the worker and the runner of this process tell the profiler when they are called."""
    from appliance.vllm_plugin.sm70.reference_worker import Sm70ReferenceModelRunner, Sm70ReferenceWorker

    def around(cls: type, name: str, context: Any) -> None:
        theirs = getattr(cls, name)

        def run(self: Any, *arguments: Any, **rest: Any) -> Any:
            with context():
                return theirs(self, *arguments, **rest)

        setattr(cls, name, run)

    for name in ("execute_model", "sample_tokens"):
        around(Sm70ReferenceWorker, name, profiler.call)
    around(Sm70ReferenceModelRunner, "_model_forward", profiler.forward)


def stand_in(library: Any) -> None:
    """Replace the operators' references by functions that compute nothing. The library must be kept."""
    import torch

    from appliance.vllm_plugin.sm70 import operators
    from sm70_kernels import dispatch

    def dense(x: Any, _weight: Any, _scale: Any, _counters: Any, n: int, *_: Any) -> Any:
        return x.new_zeros((*x.shape[:-1], n))

    def first(x: Any, *_: Any) -> Any:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)

    def both(x: Any, second: Any, *_: Any) -> Any:
        return first(x), torch.zeros_like(second, dtype=second.dtype, memory_format=torch.contiguous_format)

    def half(x: Any) -> Any:
        return x.new_zeros((*x.shape[:-1], x.shape[-1] // 2))

    def add(x: Any, *_: Any) -> Any:
        return first(x), torch.zeros_like(x, dtype=torch.float32)

    def nothing(*_: Any) -> None:
        return None

    own: dict[str, Any] = {"add_rms_norm": add, "qk_norm_mrope": both, "silu_and_mul": half}
    for name in operators._DEFINED_BY:
        operators.operator(name)
        writes = name.startswith(("gdn", "attention", "kv_cache"))
        found = nothing if writes else dense if name.startswith("dense") else own.get(name, first)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl(name, dispatch.by_reference(name, found), "CPU", allow_override=True)


def measure(folder: Path, sequences: int, steps: int) -> list[Figure]:
    """Serve the tiny model and return both figures."""
    os.environ |= {
        "APPLIANCE_VLLM_PLATFORM": "sm70-reference",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    import torch
    from vllm import EngineArgs, LLMEngine, SamplingParams

    from tests.models_made import tiny_qwen

    model = tiny_qwen.make(folder / "model")
    profiler = Profiler()
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            enforce_eager=True,
            max_model_len=1024,
            max_num_seqs=sequences,
            max_num_batched_tokens=PROMPT * sequences,
            limit_mm_per_prompt={"image": 0, "video": 0},
            disable_log_stats=True,
        )
    )
    wrap(profiler)
    # Where a GPU queues a small operation, waking threads for it would cost more than it takes.
    torch.set_num_threads(1)
    library = torch.library.Library("sm70", "IMPL")
    stand_in(library)
    try:
        wanted = SamplingParams(temperature=0, max_tokens=WARM_UP + 4 * steps + 8, ignore_eos=True)
        for number in range(sequences):
            prompt = [(number + 7 * i) % 250 for i in range(PROMPT)]
            engine.add_request(str(number), {"prompt_token_ids": prompt}, wanted)
        for _ in range(WARM_UP):
            engine.step()
        found = []
        for name, without in (("eager step", False), ("step that replays a graph", True)):
            profiler.begin(without)
            for number in range(2 * steps):
                profiler.on = bool(number % 2)
                engine.step()
                profiler.end_step()
            profiler.on = False
            found.append(figure(name, profiler.steps, profiler.seconds))
        return found
    finally:
        engine.engine_core.shutdown()
        library._destroy()


def text(figures: Sequence[Figure], sequences: int) -> str:
    """The figures for a person."""
    lines = [f"Python of ours on the worker's critical path, {sequences} sequences decoding:"]
    for each in figures:
        word = "" if each.within else "  over"
        lines.append(
            f"  {each.name}: median {each.median_ms:.3f} ms, max {each.max_ms:.3f} ms of {each.step_ms:.3f} ms, over "
            f"{each.steps} steps; limit {each.limit_ms:g} ms{word}"
        )
        lines += [f"      {ms:.3f} ms  {label}" for label, ms in each.functions.items()]
    return "\n".join(lines)


def to_json(figures: Sequence[Figure], sequences: int) -> dict[str, Any]:
    """The figures with `schema` 1, in milliseconds."""
    return {
        "schema": 1,
        "within": all(each.within for each in figures),
        "sequences": sequences,
        "figures": [{**asdict(each), "within": each.within} for each in figures],
    }


def main() -> int:
    """Measure and print. Returns 0 when all is within the limit, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.host_share", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--sequences", type=int, default=8, metavar="N", help="requests that decode (default 8)")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="timed steps of each kind (default 40)")
    options = parser.parse_args()
    out = os.dup(1)
    # vLLM logs to standard output; what is printed there is to be the figures alone.
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="appliance-host-share-") as folder:
        figures = measure(Path(folder), options.sequences, options.steps)
    whole = to_json(figures, options.sequences)
    with os.fdopen(out, "w") as stream:
        stream.write((json.dumps(whole, indent=2) if options.json else text(figures, options.sequences)) + "\n")
    # Threads of the engine would keep the process; everything has been said.
    sys.stderr.flush()
    os._exit(0 if whole["within"] else 1)


if __name__ == "__main__":
    main()
