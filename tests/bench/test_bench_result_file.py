"""The form of a result: what it refuses, and that it comes back as it was written."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bench import result
from appliance.bench.result import Stats, Trace, pooled
from appliance.errors import ConfigurationError
from tests.bench.bench_results import decode, serving, trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_result_comes_back_as_it_was_written(tmp_path: Path) -> None:
    for each in (decode([1.0, 2.0], [3.0]), serving(3, 1, 2.5)):
        file = tmp_path / "result.json"
        each.write(file)
        assert result.read(file) == each
        assert json.loads(file.read_text(encoding="utf-8"))["schema"] == 1
        assert list(tmp_path.iterdir()) == [file]


def test_percentiles_interpolate_as_numpys_do() -> None:
    numpy = pytest.importorskip("numpy")
    samples = [5.0, 1.0, 4.0, 2.5, 9.0, 7.0, 7.5]
    told = Stats.of(samples)
    assert told.mean == pytest.approx(numpy.mean(samples))
    for number, value in ((50, told.p50), (90, told.p90), (99, told.p99)):
        assert value == pytest.approx(numpy.percentile(samples, number))


def test_of_one_sample_every_statistic_is_it() -> None:
    assert Stats.of([2.0]) == Stats(count=1, mean=2.0, p50=2.0, p90=2.0, p99=2.0)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf]])
def test_no_statistics_of_nothing_or_of_what_is_no_number(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="sample"):
        Stats.of(samples)


def test_pooling_needs_every_sample() -> None:
    bare = Trace(metric="decode_step_ms", label="2", stats=Stats.of([3.0]))
    assert pooled([trace([1.0]), trace([2.0, 6.0])]) == Stats.of([1.0, 2.0, 6.0])
    assert pooled([trace([1.0]), bare]) is None
    assert pooled([]) is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda record: record.update(schema=2), "schema: is 2; wanted 1"),
        (lambda record: record.update(tile="x"), 'tile: no such key; did you mean "title"?'),
        (lambda record: record.update(at="2026-11-29T12:00:00"), "at: "),
        (
            lambda record: record["contract"]["workload"].update(seed=None, sampling=None),
            "contract.workload leaves open: sampling; a result of ours tells all of it",
        ),
        (
            lambda record: record["traces"][0]["samples"].pop(),
            "traces.0: stats tell of 2 samples, 1 are",
        ),
        (
            lambda record: record.update(rates={"output_tokens_per_s": -1}),
            "rates.output_tokens_per_s: is -1; wanted greater than or equal to 0",
        ),
        (
            lambda record: record.update(kind="serve"),
            "contract.workload.measured is stable_decode_steps; serve is serving",
        ),
        (
            lambda record: record["traces"][0].update(samples=[1.0, -2.0]),
            "traces.0.samples.1: is -2.0; wanted greater than or equal to 0",
        ),
        (
            lambda record: record["traces"][0]["stats"].update(mean=1.0),
            "traces.0: stats tell a mean of 1, the samples have 1.5",
        ),
        (
            lambda record: record["traces"].append(record["traces"][0]),
            "two traces are decode_step_ms 1 all; number the repeats",
        ),
        (
            lambda record: record.update(
                totals={
                    "requests": 3,
                    "completed": 1,
                    "failed": 1,
                    "duration_s": 1,
                    "input_tokens": 1,
                    "output_tokens": 1,
                }
            ),
            "totals: 1 completed and 1 failed are not 3 requests",
        ),
    ],
)
def test_a_wrong_result_is_refused_in_one_line(tmp_path: Path, spoil: Callable[[Any], None], message: str) -> None:
    record = decode([1.0, 2.0]).to_json()
    spoil(record)
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ConfigurationError) as refused:
        result.read(file)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: "),
        (b'{"schema": 1', "line 1: "),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"[]", "wrong.json: is []; wanted "),
        (b'{"schema": NaN}', "schema: is nan; wanted 1"),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        result.read(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert message in str(refused.value)
