"""The file that a benchmark leaves: what was asked for, on what, what came out, what was left out and what failed.

Times are in milliseconds and rates in units per second, as their names say. None means that nobody told it; a result
of ours tells all of the workload, and only a published reference may leave parts open.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, ValidationError, model_validator

from appliance import data_file, whole_file
from appliance.errors import ConfigurationError
from appliance.models.source import Strict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Kind = Literal["decode", "stream", "serve"]

Measured = Literal["stable_decode_steps", "token_stream", "serving"]
"""stable_decode_steps: intervals between full-batch graph replays, nothing else; token_stream: what an HTTP client
sees of one or a few streams; serving: a whole load, prefill interference included. They are never compared with each
other."""

MEASURED: dict[Kind, Measured] = {
    "decode": "stable_decode_steps",
    "stream": "token_stream",
    "serve": "serving",
}

Metric = Literal["decode_step_ms", "itl_ms", "ttft_ms", "tpot_ms", "chunk_interval_ms", "e2e_ms", "prefill_step_ms"]
"""Times, lower is better. `itl_ms` is vLLM's: between a request's chunks. `tpot_ms` counts returned token IDs."""

Rate = Literal[
    "output_tokens_per_s",
    "input_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
]
"""Higher is better. All are the whole load's but `decode_tokens_per_s`, a request's own after its first token: 1000
through the mean `tpot_ms`."""


class Speculation(Strict):
    """The speculative method and its tokens a round; `none` and 0 where there is none."""

    method: str = "none"
    tokens: int = Field(default=0, ge=0)


class Workload(Strict):
    """What was asked of the engine. Two figures can be compared only where this is the same."""

    measured: Measured
    model: str
    """The repository of the weights, as a family: quantisation is told by System."""
    input_tokens: int | None = Field(default=None, gt=0)
    output_tokens: int | None = Field(default=None, gt=0)
    concurrency: int | None = Field(default=None, gt=0)
    requests: int | None = Field(default=None, gt=0)
    counted: int | None = Field(default=None, gt=0)
    """Of `requests`, the first that were counted; None where all were."""
    dataset: str | None = None
    """`random`, or what the prompts were made of."""
    seed: int | None = None
    range_ratio: float | None = None
    request_rate: float | Literal["all_at_once"] | None = None
    sampling: dict[str, bool | int | float | str] | None = None
    """By the API's names: temperature, top_p, top_k, ignore_eos ..."""
    speculation: Speculation | None = None
    cached_prompt: bool | None = None
    """Whether the prompts lay in the prefix cache when the clock started."""


class System(Strict):
    """What answered. It may differ between two compared figures; the comparison then says how."""

    hardware: str
    """The card, as its maker names it: `Tesla V100-SXM2-16GB`."""
    gpus: int | None = Field(default=None, ge=0)
    tensor_parallel: int | None = Field(default=None, gt=0)
    engine: str | None = None
    """The serving program and its version."""
    repository: str | None = None
    revision: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    prefix_caching: bool | None = None
    attention: str | None = None


class Contract(Strict):
    """Under what a figure holds."""

    workload: Workload
    system: System


class Clocks(Strict):
    """One GPU while it was measured: MHz, watts, degrees Celsius, and NVML's throttle reasons that were seen."""

    gpu: int = Field(ge=0)
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


class Environment(Strict):
    """What the figures were taken on. None or empty: it could not be told there."""

    appliance: str
    image: str | None = None
    """Name and digest of the container image; None outside a container."""
    kernel_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Of the SM70 kernels' sources beside an engine on CUDA; which of them are in use is told by `routes`."""
    profile: str | None = None
    plan_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    topology: tuple[str, ...] = ()
    """The machine in lines, as `appliance topology` tells it."""
    driver: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    """Of vllm, torch, triton and what else decides: distribution name to version."""
    routes: dict[str, str] = Field(default_factory=dict)
    """Acceleration route to its state, with the reason where it is not enabled."""
    clocks: tuple[Clocks, ...] = ()


class Stats(Strict):
    """A distribution. Percentiles interpolate between neighbours, as numpy's and vLLM's do."""

    count: int = Field(gt=0)
    mean: float = Field(ge=0)
    p50: float = Field(ge=0)
    p90: float = Field(ge=0)
    p99: float = Field(ge=0)

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Raises ValueError where there is no sample, or one that is no finite number."""
        if not samples:
            raise ValueError("no samples; wanted at least one")
        if not all(map(math.isfinite, samples)):
            raise ValueError("a sample is not a finite number")
        cuts = statistics.quantiles(samples, n=100, method="inclusive") if len(samples) > 1 else [samples[0]] * 99
        return cls(count=len(samples), mean=statistics.fmean(samples), p50=cuts[49], p90=cuts[89], p99=cuts[98])


class Trace(Strict):
    """One repeat's distribution of one metric."""

    metric: Metric
    label: str
    """Which repeat: `1`, `2` ..."""
    mode: str = "all"
    """`all`, or the part of the distribution that `stats` tells of: `under 100 ms`, `over 4 s`."""
    share: float = Field(default=1.0, ge=0, le=1)
    """The part's size, of all samples of this metric and label."""
    stats: Stats | None
    """None where no sample lies in the part."""
    samples: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """In the order taken; may be left out where they would be too many."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.samples and (self.stats is None or self.stats.count != len(self.samples)):
            raise ValueError(f"stats tell of {self.stats.count if self.stats else 0} samples, {len(self.samples)} are")
        if self.samples and self.stats and not math.isclose(mean := statistics.fmean(self.samples), self.stats.mean):
            raise ValueError(f"stats tell a mean of {self.stats.mean:g}, the samples have {mean:g}")
        return self


class Counted(Strict):
    """So many of something, and why."""

    reason: str
    count: int = Field(ge=0)
    unit: str
    """`steps`, `requests`, `tokens`."""


class Totals(Strict):
    """What went in and came out, failures told apart and never dropped."""

    requests: int = Field(ge=0)
    completed: int = Field(ge=0)
    failed: int = Field(ge=0)
    duration_s: float = Field(gt=0)
    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    cached_tokens: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        if self.completed + self.failed != self.requests:
            raise ValueError(f"{self.completed} completed and {self.failed} failed are not {self.requests} requests")
        return self


class Result(Strict):
    """One benchmark's whole outcome."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    kind: Kind
    at: AwareDatetime
    title: str
    screen: str | None = None
    """Why it is only a screen and no acceptance run: `40 of the contract's 128 requests`."""
    contract: Contract
    environment: Environment
    traces: tuple[Trace, ...] = ()
    rates: dict[Rate, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    totals: Totals | None = None
    exclusions: tuple[Counted, ...] = ()
    failures: tuple[Counted, ...] = ()
    acceptance_length: float | None = None
    """Tokens a round with speculation, the bonus token included."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _tell_all(self) -> Self:
        workload = self.contract.workload
        if workload.measured != MEASURED[self.kind]:
            raise ValueError(f"contract.workload.measured is {workload.measured}; {self.kind} is {MEASURED[self.kind]}")
        untold = [
            name
            for name in ("input_tokens", "output_tokens", "concurrency", "requests", "sampling", "speculation")
            if getattr(workload, name) is None
        ]
        if untold:
            raise ValueError(f"contract.workload leaves open: {', '.join(untold)}; a result of ours tells all of it")
        twice = [key for key, count in Counter((t.metric, t.label, t.mode) for t in self.traces).items() if count > 1]
        if twice:
            raise ValueError(f"two traces are {' '.join(twice[0])}; number the repeats")
        return self

    def of(self, metric: Metric, mode: str = "all") -> tuple[Trace, ...]:
        """The repeats of one metric."""
        return tuple(trace for trace in self.traces if trace.metric == metric and trace.mode == mode)

    def to_json(self) -> dict[str, Any]:
        """The form that `read` takes."""
        return self.model_dump(mode="json")

    def write(self, path: Path) -> None:
        """Write it, whole or not at all. Raises OSError."""
        whole_file.write(path, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")


def pooled(traces: Iterable[Trace]) -> Stats | None:
    """Statistics of all samples together, None where a trace came without its samples."""
    parts = [trace.samples for trace in traces if trace.stats is not None]
    if not parts or not all(parts):
        return None
    return Stats.of([sample for part in parts for sample in part])


def read(path: Path) -> Result:
    """Return the result in `path`. Raises ConfigurationError in one line for whatever is wrong with it."""
    try:
        return Result.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); wanted a benchmark's result") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 text; wanted a benchmark's result in JSON") from error
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}: line {error.lineno}: {error.msg}; wanted a result in JSON") from error
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {data_file.problem(error, Result)}") from error
