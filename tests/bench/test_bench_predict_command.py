"""`appliance bench predict` as a person and a program meet it: with a model that answers at once, and the real one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from appliance import cli
from appliance.bench import predict_kernels
from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FIGURES = {"sms": 80, "sub_cores": 4, "hmma_step": 2.0, "clock": 1.0, "dram_bandwidth": 800, "ramp": 1.0, "gap": 1.0}


def answer(words: Sequence[str]) -> str:
    """What the model would print: a dense layer of as many microseconds as there are rows."""
    rows = int(words[words.index("--m") + 1])
    kernels = [("gate_up", "dense", 64, rows, "machine code"), ("add_rms_norm", "norm", 129, 2, "machine code")]
    kernels += [("lm_head", "head", 1, 1000, "roofline and a published rate")]
    wanted = words[words.index("--kernel") + 1].split(",")
    predictions = [
        {"part": part, "family": family, "launches_a_step": count, "us": us, "roofline_us": us / 2, "basis": basis}
        for part, family, count, us, basis in kernels
        if any(name in (part, family) for name in wanted)
    ]
    machine = {name: {"value": value, "unit": "", "source": ""} for name, value in FIGURES.items()}
    return json.dumps({"provenance": "predicted", "predictions": predictions, "machine": machine})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """Answer for the kernels' model, and tell what it was asked."""
    calls: list[tuple[str, ...]] = []

    def run(words: Sequence[str]) -> str:
        calls.append(tuple(words))
        return answer(words)

    monkeypatch.setattr(predict_kernels, "_run", run)
    monkeypatch.setenv("APPLIANCE_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("APPLIANCE_PROFILE", raising=False)
    return calls


def command(*words: str) -> int:
    return cli.main(["bench", "predict", *words])


def test_the_tables_say_what_each_part_rests_on(
    asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--profile", "qwen38_27b_fp8_c32", "--context", "2048", "8192", "--concurrency", "32") == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].endswith("Every figure is predicted, but for those called published,")
    assert "None was measured here." in lines[1]
    (heads,) = (line.split() for line in lines if "requests" in line and "dense:K" in line)
    assert heads[2:9] == ["dense:K", "norm:K", "head:L", "attention:B", "recurrence:B", "collectives:B", "gaps:G"]
    (row,) = (line.split() for line in lines if line.split()[:2] == ["2048", "32"])
    # 64 launches of 32 us, 129 of 2 us, and the head's millisecond.
    assert row[2:5] == ["2.05", "0.26", "1.00"]
    assert row[-1] == "29.50"
    assert "B: roofline bound, no kernel predicted" in lines
    assert any("2048, 32: 29.50 ms (mean step), dense 14.924, recurrence 3.812" in line for line in lines)
    assert any("Predicted prefill of one prompt alone" in line for line in lines)
    assert lines[-1].startswith("Not contained: embedding and sampling; ")
    assert "predicting kernels" in shown.err
    assert len(asked) == 3


def test_json_marks_every_part(asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--profile", "qwen38_27b_fp8_tp2", "--context", "4096", "--concurrency", "1", "2", "--json")
    assert command(*words) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["schema"], record["provenance"], record["tensor_parallel"]) == (1, "predicted", 2)
    assert [(each["context"], each["concurrency"]) for each in record["decode"]] == [(4096, 1), (4096, 2)]
    for each in (*record["decode"], *record["prefill"]):
        assert each["least_ms"] == pytest.approx(sum(part["ms"] for part in each["parts"]), abs=0.01)
        assert all(part["provenance"] == "predicted" and part["basis"] for part in each["parts"])
        assert each["most_tokens_per_s"] > 0
    assert record["figures"]["peer_bandwidth"]["source"]
    assert record["lacks"]
    assert all(each[3:5] == ("--tp", "2") for each in asked)


def test_json_calls_published_figures_that(asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--profile", "qwen38_27b_fp8_c32", "--context", "2048", "--concurrency", "32", "--decode-only", "--json")
    assert command(*words) == 0
    (step,) = json.loads(capsys.readouterr().out)["decode"]
    assert [(each["name"], each["provenance"]) for each in step["published"]] == [("v100_decode_2k", "published")]
    assert len(asked) == 1


def test_nothing_is_predicted_twice(asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--profile", "qwen38_27b_fp8_c32", "--context", "1024", "16384", "--concurrency", "1", "--decode-only")
    assert command(*words) == 0
    first = capsys.readouterr().out
    assert len(asked) == 1
    assert command(*words) == 0
    assert capsys.readouterr().out == first
    assert len(asked) == 1


def test_other_kernels_are_predicted_anew(
    asked: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for kernels in ("a", "b", "a"):
        monkeypatch.setattr(predict_kernels, "source_hash", lambda kernels=kernels: kernels)
        predict_kernels.predict(1, 4, 1, ("dense",), tmp_path / "kept")
    assert len(asked) == 2


def test_a_damaged_or_read_only_folder_only_costs_time(asked: list[tuple[str, ...]], tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    first = predict_kernels.predict(1, 4, 1, ("dense",), folder)
    (kept,) = folder.iterdir()
    kept.write_text("{")
    assert predict_kernels.predict(1, 4, 1, ("dense",), folder) == first
    assert predict_kernels.predict(1, 4, 1, ("dense",), folder) == first
    assert len(asked) == 2
    # A file where the folder should be.
    assert predict_kernels.predict(1, 4, 1, ("dense",), kept) == first
    assert len(asked) == 3


def test_tokens_of_a_draft_are_told_when_asked_for(
    asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--context", "1024", "--concurrency", "1", "--decode-only")
    assert command(*words) == 0
    without = capsys.readouterr().out
    # The most preferred profile has a draft.
    assert without.startswith("qwen38_27b_nvfp4_dflash2, 4 V100-SXM2.")
    assert "Predicted decode rounds" in without
    assert "tok/s" not in without
    assert "--accepted N tells of N a round" in without
    assert command(*words, "--accepted", "3.6", "--json") == 0
    (step,) = json.loads(capsys.readouterr().out)["decode"]
    assert step["most_tokens_per_s"] == pytest.approx(3600 / step["least_ms"], rel=1e-3)
    assert all("dense" not in each[-1].split(",") for each in asked)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--profile", "nonesuch"], 'no profile "nonesuch"'),
        (["--profile", "portable_smollm2"], "predictions are of Qwen3_5ForConditionalGeneration on V100s"),
        (["--profile", "qwen38_27b_fp8_c32", "--accepted", "2"], "--accepted goes with a draft"),
        (["--accepted", "8.5"], "--accepted 8.5: a round gives at most 8 tokens"),
        (["--context", "262145"], "--context 262145: qwen38_27b_nvfp4_dflash2's max_model_len is 262144"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    words: list[str], says: str, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not asked


@pytest.mark.parametrize(
    "words", [["--context", "0"], ["--concurrency", "x"], ["--accepted", "0.5"], ["--accepted", "nan"]]
)
def test_a_word_that_is_no_number_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(*words)
    assert caught.value.code == 2
    assert f'"{words[1]}" is not a' in capsys.readouterr().err


def fail(monkeypatch: pytest.MonkeyPatch, code: str, timeout: float = 60) -> str:
    """Let another program stand for the model. Returns what is said of it."""
    run = subprocess.run

    def other(_: Sequence[str], **keywords: Any) -> object:
        return run((sys.executable, "-S", "-c", code), **keywords)

    monkeypatch.setattr(subprocess, "run", other)
    monkeypatch.setattr(predict_kernels, "TIMEOUT_S", timeout)
    with pytest.raises(CheckError) as caught:
        predict_kernels._run(("--json",))
    return str(caught.value)


@pytest.mark.parametrize(
    ("printed", "told"), [("", "printed no JSON"), ("{}", "without 'predictions'"), ("[1]", "JSON without")]
)
def test_a_model_of_another_form_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], printed: str, told: str
) -> None:
    monkeypatch.setattr(predict_kernels, "_run", lambda words: printed)
    monkeypatch.setenv("APPLIANCE_STATE_DIR", str(tmp_path))
    assert command("--profile", "qwen38_27b_fp8_c32", "--context", "1024", "--concurrency", "1", "--decode-only") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("appliance: the kernels' model printed ")
    assert told in said


def test_a_model_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = fail(monkeypatch, "import sys; print('one', file=sys.stderr); sys.exit('no nvdisasm')")
    assert said == "the kernels' model failed: no nvdisasm"


def test_a_model_that_was_killed_is_told_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    said = fail(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert said == "the kernels' model failed: status -9"


def test_a_model_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    said = fail(monkeypatch, "import time; time.sleep(3600)", timeout=0.2)
    assert said == "`python -m sm70_kernels.predict --json` has not ended after 0.2 s; run it alone to see why"


def test_where_no_kernels_are_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_kernels, "PACKAGE", "nonesuch_kernels")
    with pytest.raises(CheckError, match="package nonesuch_kernels is not installed here"):
        predict_kernels.source_hash()


def test_the_command_without_kernels_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As in the sidecar's image: the package is not there at all.
    monkeypatch.setitem(sys.modules, "sm70_kernels", None)
    assert command("--profile", "qwen38_27b_fp8_c32", "--context", "1024", "--concurrency", "1", "--decode-only") == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said == "appliance: the Python package sm70_kernels is not installed here; predict where the engine is"


def test_other_json_is_refused() -> None:
    for text in ("", "{}", "[]", '{"predictions": [{}]}', '{"predictions": [], "machine": {"sms": {"value": 80}}}'):
        with pytest.raises(ValueError, match=r"."):
            predict_kernels.parse(text)


def test_the_tensor_cores_rate_is_the_models() -> None:
    found = predict_kernels.parse(answer(("--m", "1", "--kernel", "dense")))
    # 320 sub-cores, 1024 products in eight cycles, at 1 GHz.
    assert found.machine.products_a_us == 320 * 128 * 1000


@pytest.mark.needs("engine")
def test_the_real_model_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM70_KERNELS_CACHE", str(tmp_path / "kernels"))
    found = predict_kernels.predict(1, 4, 1, ("gated_rms_norm", "lm_head"), tmp_path / "kept")
    assert [(row.part, row.launches, row.machine_code) for row in found.rows] == [
        ("gated_rms_norm", 48, True),
        ("lm_head", 1, False),
    ]
    assert found.rows[1].us == pytest.approx(991.69, abs=0.01)
    assert found.machine.dram_bandwidth == 870
