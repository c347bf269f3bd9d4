"""The record of a card, with the model in the card's place: what it holds, and that the model takes it back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.card import __main__ as command
from sm70_kernels.card import measure, questions, solve
from sm70_kernels.card.measure import Card
from sm70_kernels.norm import predict as norms
from sm70_kernels.norm import table
from sm70_kernels.predict import __main__ as predicting
from sm70_kernels.predict.constants import adopt, constants
from sm70_kernels.tuning import planned
from sm70_kernels.tuning.trial import Candidate, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("engine")

CPU = torch.device("cpu")
CARD = Card("Tesla V100-SXM2-32GB", "7.0", 80)


@pytest.fixture(autouse=True)
def own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what is compiled out of the user's cache, and give the model its own figures back."""
    monkeypatch.setenv("SM70_KERNELS_CACHE", str(tmp_path / "kernels"))
    yield
    adopt({})


def trials() -> Iterator[Trial]:
    spec = table.rms_norm(5120, wide=True, residual=2)
    assert spec is not None
    for tokens in (1, 8):
        yield Trial("norm", f"tokens={tokens}", (Candidate(spec, norms.rms_norm(spec, tokens, 5120), ()),))


@pytest.fixture
def as_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card with slower shared memory and a faster L2 than the model has."""
    asked = tuple(each for each in questions.QUESTIONS if each.constant in ("shared", "barrier"))
    card = replace(constants(), shared=30.0, clock=1.5)

    def differences(question: questions.Question, *_: Any) -> list[float]:
        seen = solve.difference(question, card)
        return [seen, 1.01 * seen, 0.99 * seen]

    monkeypatch.setattr(measure, "QUESTIONS", asked)
    monkeypatch.setattr(measure, "_differences", differences)
    monkeypatch.setattr(measure, "here", lambda _: CARD)
    monkeypatch.setattr(measure, "_clock", lambda _: 1.5)
    monkeypatch.setattr(measure, "_reads", lambda *_: [])
    monkeypatch.setattr(measure, "_empty", lambda _: 2.0)
    monkeypatch.setattr(measure, "_trials", lambda *_: trials())
    monkeypatch.setattr("sm70_kernels.tuning.trial.microseconds", lambda _: (3.0,))


@pytest.mark.usefixtures("as_a_card")
def test_a_record_goes_back_to_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    found = measure.record(4, CPU, told.append)
    path = tmp_path / "card.json"
    path.write_text(json.dumps(found))
    figures = found["constants"]
    assert figures["shared"]["value"] == pytest.approx(30, rel=0.02)
    assert figures["shared"]["fast"] < figures["shared"]["value"] < figures["shared"]["slow"]
    assert figures["barrier"]["value"] == pytest.approx(constants().barrier, rel=0.05)
    assert (figures["clock"]["value"], figures["sms"]["value"]) == (1.5, 80)
    # 2.0 us from one start to the next: the model's 1.5 to start, the rest between.
    assert (figures["ramp"]["value"], figures["gap"]["value"]) == (1.5, 0.5)
    (norm,) = found["agreement"]
    assert (norm["family"], norm["candidates"], norm["order"]) == ("norm", 2, None)
    trial = found["trials"][0]
    # Both are from start to start: the model's gap of 1 us against the card's 0.5.
    assert trial["predicted"][0] - trial["with_card"][0] == pytest.approx(0.5, abs=0.2)
    assert found["changes"] == []
    assert told[-1] == "norm tokens=8: 3.0 µs"
    assert predicting.main(["--m", "1", "--kernel", "cublas", "--json", "--constants", str(path)]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert machine["shared"]["source"].startswith("measured on a Tesla V100-SXM2-32GB: dependent loads from shared")
    assert machine["clock"]["value"] == 1.5


def test_a_card_that_emulates_the_instruction_is_not_asked_for_dense_tactics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sm70_kernels.tuning.planned.trials", lambda *_: trials())
    told: list[str] = []
    h200 = Card("NVIDIA H200", "9.0", 132)
    assert [each.family for each in measure._trials(4, CPU, h200, told.append)] == ["norm", "norm"]
    assert told == ["compute capability 9.0 emulates mma.sync.m8n8k4: dense tactics are not timed"]


def test_an_empty_kernel_that_is_faster_than_the_models_start_leaves_no_gap() -> None:
    assert measure._start(1.2, constants()) == {"ramp": 1.2, "gap": 0.0}
    assert measure._start(2.5, constants()) == {"ramp": 1.5, "gap": 1.0}


def test_arguments_are_as_large_as_the_launch_says() -> None:
    for question in questions.QUESTIONS:
        if question.constant != "dram":
            described = question.launch(1, question.lengths[0])
            made = measure._arguments(question.spec, described, CPU)
            assert len(made) == len(question.spec.kernel.params)
            for letter, each in zip(question.spec.kernel.params, made, strict=True):
                assert torch.is_tensor(each) == (letter == "P")
            if question.unit == "cycles":
                assert made[1].dtype == torch.int64
                assert made[1].numel() == question.spec.threads // 32


def test_what_a_step_runs_is_timed_on_its_operators_case() -> None:
    found = {work.part: case for work, case in planned.timed_alike(8)}
    assert {"add_rms_norm", "gated_rms_norm", "qk_norm_mrope", "sigmoid_gate"} <= found.keys()
    assert found["add_rms_norm"].sizes == {"tokens": 8, "hidden": 5120, "residual_bits": 32}
    (work, case), *_ = (pair for pair in planned.timed_alike(8) if pair[0].part == "add_rms_norm")
    assert work.launch.extent == (8, 1, 1)
    assert case.name.startswith("add_rms_norm[")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens where there is no GPU")
def test_without_a_gpu_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--out", str(tmp_path / "card.json")]) == 1
    said = capsys.readouterr().err
    assert said == "sm70_kernels.card: no NVIDIA GPU here, and nothing can be measured without one\n"
