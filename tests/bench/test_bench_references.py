"""The shipped references: their source's figures, each recomputed from the others; bad files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from appliance.bench import reference
from appliance.errors import ConfigurationError
from appliance.paths import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.bench.reference import Reference


def step(name: str, statistic: str = "mean") -> float:
    return reference.load(name).times["decode_step_ms"].values[statistic]  # type: ignore[index]


def figure(name: str, key: str) -> float:
    return reference.load(name).figures[key].value


def tokens_per_s(name: str) -> float:
    return reference.rates_of(reference.load(name).totals)["output_tokens_per_s"]


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def test_the_2k_decode_figures_are_those_of_the_source() -> None:
    told = reference.load("v100_decode_2k").times["decode_step_ms"]
    assert (told.mean, told.p50, told.p90, told.p99, told.count) == (29.502, 29.489, 29.511, 29.877, 244)
    assert step("v100_decode_2k_before") == 36.285
    assert step("a800_decode_2k") == 33.521
    assert f"{step('a800_decode_2k') / 1.1:.3f}" == "30.474"


def test_the_rates_over_the_a800_at_2k_are_13_62_13_43_13_90_and_20_10_percent() -> None:
    gains = [percent(step("a800_decode_2k", each) / step("v100_decode_2k", each) - 1) for each in reference.STATISTICS]
    assert gains == ["13.62", "13.43", "13.90", "20.10"]
    assert reference.load("a800_decode_2k").times["decode_step_ms"].derived == ("p50", "p90", "p99")


def test_the_step_is_18_69_percent_shorter_where_the_source_says_18_70() -> None:
    shorter = 1 - step("v100_decode_2k") / step("v100_decode_2k_before")
    assert percent(shorter) == "18.69"
    assert abs(100 * shorter - 18.70) < 0.01
    assert any("18.70%" in note and "18.69%" in note for note in reference.load("v100_decode_2k").notes)


def test_the_stages_between_the_two_only_ever_shorten_the_step() -> None:
    stages = ("with_m32_tuning", "with_gemma_rms_norm", "with_six_warp_attention", "old_extension_repeat")
    told = [step("v100_decode_2k_before"), *(figure("v100_decode_2k", each) for each in stages), step("v100_decode_2k")]
    assert told == [36.285, 34.239, 31.336, 30.140, 30.124, 29.502]


def test_the_two_traces_differ_by_0_11_percent() -> None:
    first, second = reference.load("v100_decode_2k").times["decode_step_ms"].repeats
    assert percent(first / second - 1) == "0.11"


def test_the_parts_of_a_step_are_within_it() -> None:
    parts = ("fp8_projection", "gdn_conv", "communication", "full_attention", "elementwise_layout")
    told = [figure("v100_decode_2k", each) for each in parts]
    assert told == [14.924, 3.812, 3.026, 2.901, 1.235]
    assert sum(told) < step("v100_decode_2k")


def test_the_rates_over_the_a800_at_8k_are_9_88_9_75_10_49_and_11_90_percent() -> None:
    gains = [percent(step("a800_decode_8k", each) / step("v100_decode_8k", each) - 1) for each in reference.STATISTICS]
    assert gains == ["9.88", "9.75", "10.49", "11.90"]


def test_the_8k_mean_misses_its_limit_by_0_040_ms() -> None:
    limit = step("a800_decode_8k") / 1.1
    assert f"{limit:.3f}" == "36.112"
    assert f"{step('v100_decode_8k') - limit:.3f}" == "0.040"


def test_from_2k_to_8k_the_steps_grow_by_22_54_and_18_50_percent_nearly_all_of_it_in_attention() -> None:
    assert percent(step("v100_decode_8k") / step("v100_decode_2k") - 1) == "22.54"
    assert percent(step("a800_decode_8k") / step("a800_decode_2k") - 1) == "18.50"
    more = figure("v100_decode_8k", "full_attention") - figure("v100_decode_2k", "full_attention")
    assert round(100 * more / (step("v100_decode_8k") - step("v100_decode_2k"))) == 97


def test_the_32k_rates_follow_from_tokens_and_seconds() -> None:
    a800, v100 = tokens_per_s("a800_serve_32k"), tokens_per_s("v100_serve_32k_before")
    assert (f"{a800:.3f}", f"{v100:.3f}") == ("15.876", "11.023")
    assert percent(1 - v100 / a800) == "30.57"
    assert f"{a800 * 1.1:.3f}" == "17.463"
    assert percent(a800 * 1.1 / v100 - 1) == "58.42"
    rates = [reference.rates_of(reference.load(name).totals)["requests_per_s"] for name in ("v100_serve_32k_before",)]
    assert f"{rates[0]:.5f}" == "0.04306"


def test_the_32k_latencies_and_their_modes_are_those_of_the_source() -> None:
    v100, a800 = reference.load("v100_serve_32k_before"), reference.load("a800_serve_32k")
    assert tuple(v100.times["itl_ms"].values.values()) == (2059.92, 61.94, 4844.37, 5103.26)
    assert tuple(a800.times["itl_ms"].values.values()) == (1151.94, 46.64, 3369.47, 3593.90)
    for each, fast, slow in ((v100, 60.84, 0.3023), (a800, 46.34, 0.00012)):
        modes = {mode.mode: mode for mode in each.modes}
        assert modes["under 100 ms"].times is not None
        assert modes["under 100 ms"].times.p50 == fast
        assert modes["over 4 s"].share == slow


def test_the_screen_of_40_is_2_73_times_the_a800s_first_40() -> None:
    screen, first = tokens_per_s("v100_serve_32k_screen"), tokens_per_s("a800_serve_32k_first_40")
    assert (f"{screen:.3f}", f"{first:.3f}") == ("29.930", "10.967")
    assert f"{screen / first:.2f}" == "2.73"
    assert f"{first * 1.1:.3f}" == "12.064"
    assert screen > first * 1.1


def test_the_screens_other_figures_agree_among_themselves() -> None:
    screen = "v100_serve_32k_screen"
    assert f"{figure(screen, 'kv_capacity') / 33024:.2f}" == f"{figure(screen, 'kv_concurrency'):.2f}" == "57.21"
    assert percent(figure(screen, "mixed_probe_batched") / figure(screen, "mixed_probe") - 1) == "10.35"


def test_the_32k_contract_is_whole() -> None:
    workload = reference.load("a800_serve_32k").contract.workload
    assert (workload.input_tokens, workload.output_tokens, workload.requests, workload.concurrency) == (
        32768,
        256,
        128,
        32,
    )
    assert (workload.dataset, workload.seed, workload.range_ratio, workload.request_rate) == (
        "random",
        1234,
        0,
        "all_at_once",
    )
    assert workload.sampling == {"temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("name", reference.load_all())
def test_every_reference_tells_whose_figures_they_are_and_what_ran(name: str) -> None:
    each = reference.load(name)
    assert each.source
    assert each.title
    assert each.contract.workload.model == "Qwen3.8-27B"
    assert each.contract.workload.concurrency
    assert each.contract.system.hardware.startswith(("V100", "A800"))


def test_totals_are_so_many_requests_of_so_many_tokens() -> None:
    for each in reference.load_all().values():
        if each.totals is None:
            continue
        workload = each.contract.workload
        assert each.totals.output_tokens == each.totals.completed * (workload.output_tokens or 0)
        assert each.totals.input_tokens == each.totals.completed * (workload.input_tokens or 0)
        assert each.totals.requests == (workload.counted or workload.requests)


def test_an_unknown_reference_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match='no reference "a800_decode_2"; did you mean "a800_decode_2k"'):
        reference.load("a800_decode_2")


def changed(folder: Path, change: Callable[[dict[str, object]], None]) -> Path:
    """A file with one reference, changed."""
    known = yaml.safe_load((REFERENCES / "c32_decode.yaml").read_text(encoding="utf-8"))
    one = known["references"]["v100_decode_2k"]
    change(one)
    file = folder / "own.yaml"
    file.write_text(yaml.safe_dump({"references": {"mine": one}}), encoding="utf-8")
    return file


def test_a_reference_of_ones_own_is_read(tmp_path: Path) -> None:
    found: dict[str, Reference] = reference.read(changed(tmp_path, lambda one: None))
    assert list(found) == ["mine"]
    assert found["mine"] == reference.load("v100_decode_2k")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.update(sorce="x"), 'references.mine.sorce: no such key; did you mean "source"?'),
        (lambda one: one.pop("times"), "references.mine: tells no time, no rate and no totals"),
        (
            lambda one: one["times"].update(decode_step_ms={"count": 3}),
            "decode_step_ms: tells no statistic; wanted at least one of mean, p50, p90, p99",
        ),
        (
            lambda one: one["times"].update(decode_step_ms={"mean": 1.0, "derived": ["p50"]}),
            "derived names p50, which is not there",
        ),
        (lambda one: one["times"].update(decode_step_ms={"mean": float("nan")}), "wanted a finite number"),
        (lambda one: one["times"].update(decode_step_ms={"mean": 0}), "wanted greater than 0"),
        (
            lambda one: one.update(rates={"requests_per_s": -1.0}),
            "rates.requests_per_s: is -1.0; wanted greater than 0",
        ),
        (lambda one: one["times"].update(decode_steps={"mean": 1}), "references.mine.times.decode_steps"),
        (lambda one: one["contract"]["workload"].pop("measured"), "contract.workload.measured: missing"),
        (
            lambda one: one.update(
                rates={"output_tokens_per_s": 12.0},
                totals={
                    "requests": 1,
                    "completed": 1,
                    "failed": 0,
                    "duration_s": 2.0,
                    "input_tokens": 1,
                    "output_tokens": 20,
                },
            ),
            "rates.output_tokens_per_s is 12, the totals give 10",
        ),
    ],
)
def test_a_wrong_reference_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, object]], None], message: str
) -> None:
    file = changed(tmp_path, change)
    with pytest.raises(ConfigurationError) as refused:
        reference.read(file)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{file}: ")
    assert "\n" not in str(refused.value)


def test_a_name_that_no_command_line_could_give_is_refused(tmp_path: Path) -> None:
    file = changed(tmp_path, lambda one: None)
    file.write_text(file.read_text(encoding="utf-8").replace("mine:", "My One:"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match='"My One" is no name; wanted lower-case letters, digits and _'):
        reference.read(file)


def test_one_name_in_two_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = changed(tmp_path, lambda one: None)
    (tmp_path / "second.yaml").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(reference, "REFERENCES", tmp_path)
    with pytest.raises(ConfigurationError, match="the reference mine is in another file too; rename one"):
        reference.load_all.__wrapped__()
