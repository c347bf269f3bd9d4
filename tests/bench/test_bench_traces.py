"""Stable decode steps out of recorded steps with known answers, the published figures among them."""

from __future__ import annotations

import json
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import rundir
from appliance.bench import compare, reference, serve, statistics, traces, verdict
from appliance.bench.result import Contract, Stats, System, pooled
from appliance.errors import CheckError
from tests.bench import bench_samples as samples

if TYPE_CHECKING:
    from pathlib import Path


def stable(lines: list[str], batch: int = 32, warm_up: int = samples.WARM_UP, **options: Any) -> traces.DecodeTrace:
    return traces.stable(traces.parse(lines).steps, batch, warm_up, **options)


def changed(lines: list[str], number: int, **fields: Any) -> list[str]:
    """The record with one step's fields changed."""
    entries = [json.loads(line) for line in lines]
    return [json.dumps({**entry, **(fields if entry["step"] == number else {})}) for entry in entries]


def test_only_stable_steps_are_counted_and_all_else_is_excluded_with_its_reason() -> None:
    lines = samples.record(samples.V100_2K)
    found = stable(lines)
    assert found.intervals_ms == pytest.approx(samples.V100_2K)
    assert set(found.generated) == {32}
    assert found.excluded == {traces.PREFILL: 8, traces.WARM_UP: 4, traces.PARTIAL: 8}
    assert len(found.intervals_ms) + sum(found.excluded.values()) == len(lines) - 1, "every interval is accounted for"
    assert found.tokens_per_s == pytest.approx(32_000 / fmean(samples.V100_2K))
    assert sum(one.count for one in traces.exclusions([found, found])) == 2 * sum(found.excluded.values())


def test_a_request_of_somebody_else_disturbs_its_step_and_the_next() -> None:
    lines = changed(samples.record([30.0] * 20), 20, requests=33, decode_tokens=33)
    assert stable(lines).excluded[traces.FOREIGN] == 2
    assert len(stable(lines).intervals_ms) == 18


def test_a_prefill_in_the_middle_is_left_out_with_the_interval_after_it() -> None:
    lines = changed(samples.record([30.0] * 20), 20, prefill_tokens=64)
    assert stable(lines).excluded[traces.PREFILL] == 8 + 2


def test_no_interval_spans_a_step_that_is_missing() -> None:
    lines = samples.record([30.0] * 20)
    del lines[19]
    found = stable(lines)
    assert found.excluded[traces.GAP] == 1
    assert set(map(round, found.intervals_ms)) == {30}


def test_where_the_record_knows_it_only_graph_replays_count() -> None:
    lines = samples.record([30.0] * 10)
    for number in range(1, 200):
        lines = changed(lines, number, graph="FULL")
    lines = changed(changed(lines, 15, graph="NONE"), 18, graph="PIECEWISE")
    found = stable(lines)
    assert found.excluded[traces.EAGER] == 2, "the eager step, and the one whose interval begins with it"
    assert found.graphs == {"FULL": 7, "PIECEWISE": 1}
    assert traces.EAGER not in stable(lines, eager=True).excluded
    assert stable(lines, eager=True).graphs["NONE"] == 1


def test_drafted_tokens_count_by_what_was_sampled() -> None:
    lines = samples.record([17.5] * 10, batch=4)
    for number in range(1, 30):
        lines = changed(lines, number, generated_tokens=14)
    assert stable(lines, 4).tokens_per_s == pytest.approx(14 / 0.0175, rel=1e-3)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(0, 5))
def test_every_interval_is_either_stable_or_excluded_once(kinds: list[int], warm_up: int) -> None:
    steps = [
        traces.Step(0.03 * n, n + (kind == 3) * 100, 2 + (kind == 2), int(kind == 1), 2, 2, 2, 0)
        for n, kind in enumerate(kinds)
    ]
    found = traces.stable(steps, 2, warm_up)
    assert len(found.intervals_ms) + sum(found.excluded.values()) == len(steps) - 1
    assert len(found.intervals_ms) == len(found.generated)


def test_the_record_is_read_over_its_rotation_and_from_a_moment_on(tmp_path: Path) -> None:
    lines = samples.record([30.0] * 20)
    (tmp_path / rundir.PREVIOUS_STEPS).write_text("\n".join(lines[:10]) + "\n")
    (tmp_path / rundir.STEPS).write_text("\n".join(lines[10:]) + '\n{"t": 10')
    whole = traces.read(tmp_path)
    assert [step.step_count for step in whole.steps] == list(range(1, len(lines) + 1))
    assert whole.idle
    middle = whole.steps[14].t
    assert traces.read(tmp_path, middle).steps == whole.steps[15:]
    assert traces.read(tmp_path, whole.steps[-1].t).steps == ()
    assert traces.read(tmp_path, middle).generated == sum(step.generated_tokens for step in whole.steps[15:])


def test_lines_that_the_engine_could_not_write_are_counted() -> None:
    lines = samples.record([30.0] * 3)
    told = json.dumps({"t": 2000.0, "lost": 7, "reason": "No space left on device"})
    assert traces.parse([*lines, told]).lost == 7


def test_without_a_record_it_is_said_where_it_would_be(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"steps\.jsonl is not there"):
        traces.read(tmp_path)


@pytest.mark.parametrize("line", ["{}", "no json", '{"t": "soon"}', "[]", '{"t": 2000.0, "step": 1}'])
def test_a_line_that_no_engine_wrote_is_named(line: str) -> None:
    lines = samples.record([30.0] * 3)
    with pytest.raises(CheckError, match="line 2: no step in JSON"):
        traces.parse([lines[0], line, *lines[1:]])


def side(name: str, *repeats: list[float], input_tokens: int = 2048) -> compare.Side:
    """A result made of recorded steps, as `bench decode` makes it."""
    found = [stable(samples.record(one)) for one in repeats]
    of_steps = [statistics.trace("decode_step_ms", str(n), one.intervals_ms) for n, one in enumerate(found, 1)]
    contract = Contract(workload=samples.workload(input_tokens=input_tokens), system=samples.SYSTEM)
    return compare.of_result(name, samples.result(of_steps, contract=contract))


def test_the_published_steps_at_2k() -> None:
    stats = Stats.of(stable(samples.record(samples.V100_2K)).intervals_ms)
    assert [round(value, 3) for value in (stats.mean, stats.p50, stats.p90, stats.p99)] == [
        29.502,
        29.489,
        29.511,
        29.877,
    ]
    assert stats.count == 244
    against = compare.compare(
        side("ours", samples.V100_2K), compare.of_reference("a800", reference.load("a800_decode_2k"))
    )
    gains = {line.key[2]: f"{100 * line.gain:.2f}" for line in against.lines if line.key[0] == "decode_step_ms"}
    assert gains == {"mean": "13.62", "p50": "13.43", "p90": "13.90", "p99": "20.10"}
    told = verdict.judge(against, 0.10)
    assert told.outcome == "reached"
    assert told.target is not None
    assert round(told.target.limit, 3) == 30.474


def test_the_published_reduction_from_36_285_to_29_502() -> None:
    before, after = side("before", samples.V100_2K_BEFORE), side("after", samples.V100_2K)
    (line,) = (line for line in compare.compare(after, before).lines if line.key == ("decode_step_ms", "all", "mean"))
    assert (round(line.reference, 3), round(line.subject, 3)) == (36.285, 29.502)
    assert f"{100 * line.change:.2f}" == "-18.70"


def test_the_published_miss_by_0_040_ms_at_8k_is_a_miss() -> None:
    ours = side("ours", *samples.V100_8K, input_tokens=8192)
    against = compare.compare(ours, compare.of_reference("a800", reference.load("a800_decode_8k")))
    assert against.headline is not None
    assert f"{100 * against.headline.gain:.2f}" == "9.88"
    told = verdict.judge(against, 0.10)
    assert told.outcome == "missed"
    assert told.target is not None
    assert (round(told.target.limit, 3), round(told.target.margin, 3)) == (36.112, -0.040)


def test_repeats_are_pooled_by_their_samples_and_their_spread_is_told() -> None:
    parts = [statistics.trace("decode_step_ms", str(n), one) for n, one in enumerate(samples.V100_8K, 1)]
    together = pooled(parts)
    assert together is not None
    assert [round(value, 3) for value in (together.mean, together.p50, together.p90, together.p99)] == [
        36.152,
        36.152,
        36.198,
        36.220,
    ]
    assert together.count == 500
    assert statistics.spread([29.535, 29.502]) == pytest.approx(0.0011, abs=5e-5), "the published 0.11%"
    assert statistics.spread([29.5]) is None


def test_the_published_32k_serving_and_its_modes() -> None:
    served = serve.Served(serve.CONTRACT, samples.serving(serve.CONTRACT, samples.bimodal(), 2972.63), {})
    by_mode = {(trace.metric, trace.mode): trace for trace in serve.result_traces(served)}
    whole = by_mode["itl_ms", "all"].stats
    assert whole is not None
    assert [round(value, 2) for value in (whole.mean, whole.p50, whole.p90, whole.p99)] == [
        2059.92,
        61.94,
        4844.37,
        5103.26,
    ]
    assert f"{100 * by_mode['itl_ms', 'over 4 s'].share:.2f}" == "30.23"
    fast = by_mode["itl_ms", "under 100 ms"].stats
    assert fast is not None
    assert fast.p50 == pytest.approx(60.84)
    assert sum(trace.share for trace in by_mode.values() if trace.mode != "all") == pytest.approx(1)

    totals = serve.totals(served)
    rates = serve.rates(totals)
    assert f"{rates['output_tokens_per_s']:.3f}" == "11.023"
    assert f"{rates['requests_per_s']:.5f}" == "0.04306"
    ours = samples.result(
        serve.result_traces(served),
        kind="serve",
        contract=Contract(
            workload=samples.workload(
                measured="serving",
                input_tokens=32768,
                requests=128,
                dataset="random",
                seed=1234,
                range_ratio=0.0,
                request_rate="all_at_once",
            ),
            system=System(hardware="V100", gpus=4),
        ),
        totals=totals,
        rates=rates,
    )
    assert serve.departures(served.load) is None
    against = compare.compare(
        compare.of_result("ours", ours), compare.of_reference("a800", reference.load("a800_serve_32k"))
    )
    assert against.workload == ()
    assert against.headline is not None
    assert f"{100 * against.headline.gain:.2f}" == "-30.57"
    told = verdict.judge(against, 0.10)
    assert told.target is not None
    assert f"{told.target.limit:.3f}" == "17.463"
    assert f"{100 * (told.target.limit / against.headline.subject - 1):.2f}" == "58.42"


def test_the_published_screen_of_40_requests() -> None:
    rates = serve.rates(samples.screened().totals.model_copy(update={"completed": 40, "output_tokens": 40 * 256}))  # type: ignore[union-attr]
    assert f"{rates['output_tokens_per_s']:.3f}" == "29.930"
