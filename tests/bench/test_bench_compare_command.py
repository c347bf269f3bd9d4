"""`appliance bench compare` as it is typed: exit status, forms of output, and what a person got wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from appliance.cli import main
from tests.bench.bench_results import decode

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.bench.result import Result


def saved(folder: Path, result: Result, name: str = "mine.json") -> str:
    file = folder / name
    result.write(file)
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["bench", "compare", *words])
    told = capsys.readouterr()
    return status, told.out, told.err


def record(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status, out, _ = run(capsys, *words, "--json")
    return status, json.loads(out)


def test_a_result_that_reaches_the_target_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = saved(tmp_path, decode([29.0, 29.1], [29.05, 29.1]))
    status, out, _ = run(capsys, mine, "--reference", "a800_decode_2k")
    assert status == 0
    assert out.startswith(f"{mine}: made up (measured)\n  against a800_decode_2k: ")
    assert "Verdict: The rate is 15." in out


def test_the_published_8k_step_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "v100_decode_8k", "--reference", "a800_decode_8k")
    assert status == 1
    assert "Missed by 0.040 ms" in out


def test_of_several_results_one_miss_is_enough_for_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = saved(tmp_path, decode([29.0])), saved(tmp_path, decode([33.0]), "bad.json")
    status, told = record(capsys, good, bad, "--reference", "a800_decode_2k")
    assert status == 1
    assert [each["verdict"]["outcome"] for each in told["comparisons"]] == ["reached", "missed"]


def test_a_result_is_compared_with_another_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = saved(tmp_path, decode([36.0]), "before.json"), saved(tmp_path, decode([30.0]), "after.json")
    status, told = record(capsys, after, "--reference", before)
    assert status == 0
    (only,) = told["comparisons"]
    assert only["differences"] == {"workload": [], "untold": [], "system": []}
    assert only["target"]["figure"]["gain"] == pytest.approx(0.2)


def test_json_tells_contracts_figures_target_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = record(capsys, "v100_decode_2k", "--reference", "a800_decode_2k")
    assert (status, told["schema"], told["wanted_gain"]) == (0, 1, 0.1)
    (only,) = told["comparisons"]
    assert only["subject"]["contract"]["workload"]["input_tokens"] == 2048
    assert {"part": "hardware", "subject": "V100", "reference": "A800"} in only["differences"]["system"]
    assert [each["statistic"] for each in only["figures"]] == ["mean", "p50", "p90", "p99"]
    assert [each["derived"] for each in only["figures"]] == [False, True, True, True]
    assert only["target"]["limit"] == pytest.approx(33.521 / 1.1)
    assert only["verdict"]["passed"] is True


def test_differing_contracts_are_refused_without_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("v100_serve_32k_screen", "--reference", "a800_serve_32k_first_40")
    status, out, _ = run(capsys, *words)
    assert status == 1
    assert "No claim: the contracts differ in requests 40 ≠ 128." in out
    assert "--list-differences" in out
    assert "29.930" not in out
    status, told = record(capsys, *words)
    (only,) = told["comparisons"]
    assert (status, only["refused"], only["figures"], only["target"]) == (1, True, [], None)
    assert only["differences"]["workload"] == [{"part": "requests", "subject": 40, "reference": 128}]


def test_differences_are_listed_on_demand_and_still_make_no_claim(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("v100_serve_32k_screen", "--reference", "a800_serve_32k_first_40", "--list-differences")
    status, out, _ = run(capsys, *words)
    assert status == 1
    assert "requests: 40 here, 128 there" in out
    assert "+172.91%" in out
    assert "Verdict: No claim: the contracts differ in requests 40 ≠ 128." in out
    assert "For orientation: The rate is 172.91% higher" in out
    status, told = record(capsys, *words)
    (only,) = told["comparisons"]
    assert (status, only["refused"], only["verdict"]["passed"]) == (1, False, False)
    assert f"{only['target']['limit']:.3f}" == "12.064"


def test_markdown_is_a_table_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "v100_decode_2k", "--reference", "a800_decode_2k", "--markdown")
    assert status == 0
    assert "| decode_step_ms mean | 29.502 | 33.521 | ms | +13.62% | -11.99% |" in out
    assert "| decode_step_ms p99* |" in out
    assert "* computed from what is printed, not printed itself" in out
    assert "**Verdict.** The rate is 13.62% higher" in out


def test_another_threshold_moves_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("v100_decode_8k", "--reference", "a800_decode_8k", "--threshold")
    assert run(capsys, *words, "9.5")[0] == 0
    status, out, _ = run(capsys, *words, "13")
    assert status == 1
    assert "13% higher means at most 35.153 ms" in out


def test_the_references_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--list")
    assert status == 0
    assert "A800, C32, 2048 in and 256 out (published)\n" in out
    status, told = record(capsys, "--list")
    assert status == 0
    assert told["references"]["a800_decode_2k"]["times"]["decode_step_ms"]["mean"] == 33.521


def test_a_reference_of_ones_own_is_named_in_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "references:\n  mine:\n    title: mine\n    provenance: measured\n    source: this test\n"
        "    contract:\n      workload: {measured: stable_decode_steps, model: Qwen3.8-27B, input_tokens: 2048}\n"
        "      system: {hardware: V100}\n    times:\n      decode_step_ms: {mean: 40}\n",
        encoding="utf-8",
    )
    assert run(capsys, "v100_decode_2k", "--reference", f"{file}:mine")[0] == 0
    status, _, err = run(capsys, "v100_decode_2k", "--reference", f"{file}:mien")
    assert (status, err) == (2, f'appliance: {file} has no reference "mien"; did you mean "mine"? (it has: mine)\n')
    status, _, err = run(capsys, "v100_decode_2k", "--reference", str(file))
    assert status == 2
    assert f"name one of them: {file}:NAME" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "wanted a RESULT and --reference NAME; `appliance bench compare --list` tells the shipped references"),
        (("v100_decode_2k",), "wanted a RESULT and --reference NAME"),
        (("--reference", "a800_decode_2k"), "wanted a RESULT and --reference NAME"),
        (("v100_decode_2k", "--reference", "a800_decode"), 'no reference "a800_decode"; did you mean'),
        (("nowhere.json", "--reference", "a800_decode_2k"), "nowhere.json: cannot be read (No such file or directory)"),
        (
            ("v100_decode_2k", "--reference", "a800_decode_2k", "--threshold", "ten"),
            '--threshold is "ten"; wanted percent from 0 to 1000',
        ),
        (
            ("v100_decode_2k", "--reference", "a800_decode_2k", "--threshold", "nan"),
            '--threshold is "nan"; wanted percent from 0 to 1000',
        ),
    ],
)
def test_bad_usage_ends_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_an_unknown_benchmark_is_refused_with_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "compair"])
    assert ended.value.code == 2
    assert "invalid choice: 'compair' (choose from" in capsys.readouterr().err
