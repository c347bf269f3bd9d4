"""Figures and contracts side by side, and what may be said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.bench import reference, verdict
from appliance.bench.compare import ALL, Side, compare, of_reference, of_result
from appliance.bench.result import Counted, Result, Stats, Trace
from tests.bench.bench_results import decode, made, serving, trace

if TYPE_CHECKING:
    from appliance.bench.compare import Comparison

TEN = 0.1


def shipped(name: str) -> Side:
    return of_reference(name, reference.load(name))


def against(result: Result, name: str) -> Comparison:
    return compare(of_result("mine", result), shipped(name))


def said(comparison: Comparison, wanted: float = TEN) -> str:
    return " ".join(verdict.judge(comparison, wanted).words)


def flat(mean: float, count: int = 3) -> list[float]:
    """Samples whose statistics are all `mean`."""
    return [mean] * count


def test_the_2k_win_is_told_with_its_margin_and_the_spread_of_its_repeats() -> None:
    found = verdict.judge(compare(shipped("v100_decode_2k"), shipped("a800_decode_2k")), TEN)
    assert found.outcome == "reached"
    assert found.target is not None
    assert f"{found.target.limit:.3f} {found.target.margin:.3f}" == "30.474 0.972"
    text = " ".join(found.words)
    assert "The rate is 13.62% higher than that of a800_decode_2k." in text
    assert "Reached with 0.972 ms to spare: 10% higher means at most 30.474 ms, and it is 29.502 ms." in text
    assert "The means of its repeats lie 0.033 ms apart." in text
    assert "Two systems are compared; they differ in hardware V100 ≠ A800." in text


def test_the_8k_miss_by_0_040_ms_is_a_miss_and_says_so() -> None:
    found = verdict.judge(compare(shipped("v100_decode_8k"), shipped("a800_decode_8k")), TEN)
    assert (found.outcome, found.passed) == ("missed", False)
    text = " ".join(found.words)
    assert "The rate is 9.88% higher" in text
    assert "Missed by 0.040 ms: 10% higher means at most 36.112 ms, and it is 36.152 ms." in text
    assert "It would take a rate that is 0.11% higher still." in text


def test_the_32k_loss_tells_what_it_would_take() -> None:
    found = verdict.judge(compare(shipped("v100_serve_32k_before"), shipped("a800_serve_32k")), TEN)
    assert found.outcome == "slower"
    text = " ".join(found.words)
    assert "The rate is 30.57% lower than that of a800_serve_32k." in text
    assert "10% higher means at least 17.463 tokens/s, and it is 11.023 tokens/s." in text
    assert "It would take a rate that is 58.42% higher still." in text


def test_the_screen_and_the_first_40_of_a_longer_run_are_two_contracts() -> None:
    found = verdict.judge(compare(shipped("v100_serve_32k_screen"), shipped("a800_serve_32k_first_40")), TEN)
    assert (found.outcome, found.passed) == ("differing_contracts", False)
    assert found.words == ("No claim: the contracts differ in requests 40 ≠ 128.",)
    assert "10% higher means at least 12.064 tokens/s, and it is 29.930 tokens/s" in " ".join(found.orientation)


def test_a_step_that_is_18_69_percent_shorter_is_a_rate_22_99_percent_higher() -> None:
    (line,) = compare(shipped("v100_decode_2k"), shipped("v100_decode_2k_before")).lines
    assert f"{100 * line.change:.2f} {100 * line.gain:.2f}" == "-18.69 22.99"


def test_repeats_are_pooled_over_their_samples() -> None:
    result = decode([1.0, 2.0], [3.0, 4.0, 5.0])
    side = of_result("mine", result)
    pooled = Stats.of([1.0, 2.0, 3.0, 4.0, 5.0])
    for statistic in reference.STATISTICS:
        assert side.values["decode_step_ms", ALL, statistic] == getattr(pooled, statistic)
    assert side.repeats["decode_step_ms"] == (1.5, 4.0)


def test_of_repeats_without_samples_only_the_mean_can_be_told() -> None:
    traces = tuple(
        Trace(metric="decode_step_ms", label=str(n), stats=Stats(count=count, mean=mean, p50=1, p90=1, p99=1))
        for n, (count, mean) in enumerate([(1, 10.0), (3, 20.0)])
    )
    side = of_result("mine", made("stable_decode_steps", traces))
    assert {key[2]: value for key, value in side.values.items()} == {"mean": 17.5}


def test_a_win_smaller_than_the_repeats_differ_by_is_not_robust() -> None:
    found = verdict.judge(against(decode(flat(30.0), flat(30.9)), "a800_decode_2k"), TEN)
    assert (found.outcome, found.passed) == ("not_robust", False)
    assert "Not robust: the means of its repeats lie 0.900 ms apart, which is more." in " ".join(found.words)


def test_one_repeat_reaches_and_says_that_its_spread_is_unknown() -> None:
    comparison = against(decode(flat(29.0)), "a800_decode_2k")
    assert verdict.judge(comparison, TEN).passed
    assert "How far repeats lie apart is not known." in said(comparison)


def test_what_only_one_side_tells_is_named_and_refuses_nothing() -> None:
    comparison = against(decode(flat(29.0), seed=7), "a800_decode_2k")
    assert not comparison.workload
    assert {each.part for each in comparison.untold} >= {"seed", "sampling.temperature", "requests"}
    assert "Whether the contracts agree is not known of:" in said(comparison)


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({"input_tokens": 8192}, "input_tokens 8192 ≠ 2048"),
        ({"output_tokens": 128}, "output_tokens 128 ≠ 256"),
        ({"concurrency": 16}, "concurrency 16 ≠ 32"),
        ({"model": "Qwen3.6-27B"}, "model Qwen3.6-27B ≠ Qwen3.8-27B"),
    ],
)
def test_another_workload_allows_no_claim(workload: dict[str, object], told: str) -> None:
    found = verdict.judge(against(decode(flat(1.0), **workload), "a800_decode_2k"), TEN)
    assert found.outcome == "differing_contracts"
    assert found.words == (f"No claim: the contracts differ in {told}.",)


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ({"seed": 1}, "seed 1 ≠ 1234"),
        ({"request_rate": 2.0}, "request_rate 2 ≠ all_at_once"),
        ({"sampling": {"temperature": 1.0, "ignore_eos": True}}, "sampling.temperature 1 ≠ 0"),
        ({"sampling": {"temperature": 0.0, "ignore_eos": False}}, "sampling.ignore_eos no ≠ yes"),
        ({"dataset": "sharegpt"}, "dataset sharegpt ≠ random"),
    ],
)
def test_the_32k_contract_is_compared_to_its_last_part(workload: dict[str, object], told: str) -> None:
    assert told in said(against(serving(128, 0, 100.0, **workload), "a800_serve_32k"))


def test_different_quantities_are_never_compared() -> None:
    found = verdict.judge(compare(shipped("v100_decode_2k"), shipped("a800_serve_32k")), TEN)
    assert found.outcome == "differing_contracts"
    assert "measured stable_decode_steps ≠ serving" in found.words[0]
    assert found.orientation == ("They share no figure to judge by.",)


def test_whether_all_requests_were_counted_is_compared() -> None:
    comparison = compare(of_result("mine", serving(128, 0, 100.0)), shipped("a800_serve_32k_first_40"))
    assert [str(each) for each in comparison.workload] == ["counted 128 ≠ 40"]


def test_a_failed_request_allows_no_claim_however_fast_the_rest() -> None:
    found = verdict.judge(against(serving(127, 1, 100.0), "a800_serve_32k"), TEN)
    assert (found.outcome, found.passed) == ("failures", False)
    assert found.words == ("No claim: requests failed, 1 of mine.",)


def test_a_request_that_failed_in_the_warm_up_allows_no_claim() -> None:
    cold = Counted(reason="in the warm-up: HTTP 500", count=2, unit="requests")
    found = verdict.judge(
        against(serving(128, 0, 100.0).model_copy(update={"failures": (cold,)}), "a800_serve_32k"), TEN
    )
    assert found.words == ("No claim: requests failed, 2 of mine.",)


def test_counts_that_are_not_right_allow_no_claim_though_every_request_was_answered() -> None:
    wrong = Counted(reason="tokens that somebody else asked for", count=12, unit="tokens")
    for mine, name in (
        (serving(128, 0, 100.0), "a800_serve_32k"),
        (decode([29.0, 29.1]), "a800_decode_2k"),
    ):
        found = verdict.judge(against(mine.model_copy(update={"failures": (wrong,)}), name), TEN)
        assert (found.outcome, found.passed) == ("failures", False)
        assert found.words == ("No claim: not sound is mine: 12 tokens that somebody else asked for.",)
        assert verdict.judge(against(mine, name), TEN).passed


@pytest.mark.parametrize(
    ("count", "told"), [(1, "mine rests on 1 sample alone."), (99, "mine rests on 99 samples alone."), (100, "")]
)
def test_how_few_samples_a_verdict_rests_on_is_said(count: int, told: str) -> None:
    text = said(against(decode(flat(29.0, count)), "a800_decode_2k"))
    assert told in text
    assert ("rests on" in text) == bool(told)


def test_a_screen_is_called_that() -> None:
    result = serving(128, 0, 100.0, screen="a screen of this test")
    assert "mine is a screen and no acceptance run: a screen of this test." in said(against(result, "a800_serve_32k"))


def test_nothing_shared_is_said() -> None:
    only_ttft = made("stable_decode_steps", (trace([1.0], metric="ttft_ms"),))
    found = verdict.judge(against(only_ttft, "a800_decode_2k"), TEN)
    assert (found.outcome, found.words[0]) == ("nothing_shared", "They share no figure to judge by.")


def test_tokens_that_arrive_together_have_no_rate() -> None:
    mine = made("token_stream", (trace([0.0, 0.0, 30.0], metric="chunk_interval_ms"),))
    keys = {line.key[2] for line in compare(of_result("a", mine), of_result("b", mine)).lines}
    assert "p50" not in keys
    assert "mean" in keys


def test_a_streams_decode_rate_is_taken_from_its_time_per_token() -> None:
    mine = made(
        "token_stream",
        (trace(flat(15.0), metric="tpot_ms"), trace(flat(15.2), "2", "tpot_ms")),
        input_tokens=1024,
        concurrency=1,
        requests=1,
    )
    comparison = against(mine, "v100_fp8_c1_1k")
    assert comparison.headline is not None
    assert comparison.headline.key[0] == "decode_tokens_per_s"
    assert comparison.headline.subject == pytest.approx(1000 / 15.1)
    found = verdict.judge(comparison, 0.0)
    assert found.outcome == "reached"
    assert "The means of its repeats lie 0.877 tokens/s apart." in " ".join(found.words)


def test_modes_are_compared_with_their_like_and_a_share_is_no_rate() -> None:
    part = Trace(metric="itl_ms", label="1", mode="over 4 s", share=0.25, stats=None)
    fast = Trace(metric="itl_ms", label="1", mode="under 100 ms", share=0.75, stats=Stats.of([50.0, 60.0]))
    lines = {line.key: line for line in against(made("serving", (part, fast)), "v100_serve_32k_before").lines}
    share = lines["itl_ms", "over 4 s", "share"]
    assert (share.subject, share.reference, share.is_share, share.is_time) == (0.25, 0.3023, True, False)
    assert lines["itl_ms", "under 100 ms", "p50"].is_time


@pytest.mark.parametrize(("mean", "outcome"), [(30.0, "reached"), (30.0000001, "missed")])
def test_the_limit_itself_is_reached_and_a_hair_beyond_is_not(mean: float, outcome: str) -> None:
    comparison = compare(of_result("mine", decode(flat(mean, 1))), of_result("other", decode(flat(33.0, 1))))
    found = verdict.judge(comparison, TEN)
    assert found.outcome == outcome
    if outcome == "missed":
        text = " ".join(found.words)
        assert "10.00% higher" not in text
        assert "0.000 ms" not in text
        assert "at most 30.0000000 ms, and it is 30.0000001 ms" in text


@given(st.floats(0.01, 1e5), st.floats(0.01, 1e5), st.sampled_from([0.0, 0.05, 0.1, 1.0]))
def test_the_verdict_is_that_of_the_unrounded_figures(mine: float, other: float, wanted: float) -> None:
    comparison = compare(of_result("mine", decode([mine])), of_result("other", decode([other])))
    found = verdict.judge(comparison, wanted)
    assert found.passed == (mine <= other / (1 + wanted) * (1 + 1e-12))
    assert found.outcome in ("reached", "missed", "slower")
    assert (found.outcome == "missed") <= (mine < other)


@given(st.floats(0.01, 1e5), st.floats(0.01, 1e5))
def test_what_is_told_apart_looks_apart(one: float, other: float) -> None:
    left, right = verdict.apart(one, other)
    assert left != right or abs(one - other) < 1e-8
