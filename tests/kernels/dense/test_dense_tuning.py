"""Tuning without a GPU: what is chosen from times, and which records may be believed."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.dense import tune as dense
from sm70_kernels.dense.table import candidates, layer_of
from sm70_kernels.dense.tune import NEVER, Crossing, Shape, Timing, crossing_of, first_of_the_best
from sm70_kernels.registry import source_hash
from sm70_kernels.tuning import record
from sm70_kernels.tuning.record import Record

if TYPE_CHECKING:
    from pathlib import Path

CARD = "Tesla V100-SXM2-16GB"
DOWN = Shape(5120, 4352, False)
TIMED = Timing(*DOWN, 8, (31.0, 29.5), 1)
CROSSED = Crossing(*DOWN, (256, 512), (300.0, 600.0), (400.0, 500.0), 512)
KEPT = Record(CARD, source_hash(), {"timings": (TIMED,), "crossings": (CROSSED,)})


def with_timing(timing: Timing) -> Record:
    """Return the kept record with another timing."""
    return dataclasses.replace(KEPT, sections={**KEPT.sections, "timings": (timing,)})


def test_times_that_are_alike_go_by_the_tables_order() -> None:
    assert first_of_the_best([30.0, 29.8, 29.75]) == 0
    assert first_of_the_best([30.4, 29.8, 29.75]) == 1
    assert first_of_the_best([29.0]) == 0


def test_expansion_is_chosen_where_it_stays_faster() -> None:
    rows = (256, 512, 1024)
    assert crossing_of(rows, (1, 2, 4), (2, 2, 3)) == 1024
    assert crossing_of(rows, (3, 1, 4), (2, 2, 3)) == 1024
    assert crossing_of(rows, (3, 3, 4), (2, 2, 3)) == 256
    assert crossing_of(rows, (1, 1, 1), (2, 2, 3)) == NEVER


def test_a_record_comes_back_as_it_went() -> None:
    assert record.parse(record.dump(KEPT)) == KEPT
    chosen = dense.choices(KEPT, CARD)
    layer = layer_of(*DOWN)
    assert chosen.tactics == {(layer, 8): candidates(layer, 8)[1]}
    assert chosen.expand_from == {layer: 512}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", r"not a tuning record \(TypeError"),
        ("{}", r"not a tuning record \(KeyError: 'schema'\)"),
        (record.dump(KEPT).replace('"schema": 1', '"schema": 2'), "not a tuning record of schema 1"),
        (record.dump(KEPT).replace('"chosen"', '"choice"'), r"not a tuning record \(TypeError"),
        ("{", "Expecting property name"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        record.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (dataclasses.replace(KEPT, card="NVIDIA H200"), "is of a NVIDIA H200, and this is a Tesla V100-SXM2-16GB"),
        (dataclasses.replace(KEPT, source_hash="0" * 64), "is of kernels 000000000000…, and these are "),
        (
            with_timing(dataclasses.replace(TIMED, microseconds=(1.0,) * 9)),
            "has 9 candidates for n=5120, k=4352, 8 rows, and the table has 2",
        ),
        (with_timing(dataclasses.replace(TIMED, chosen=2)), "and the table has 2"),
    ],
)
def test_a_record_of_something_else_is_not_believed(kept: Record, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        dense.choices(kept, CARD)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for the GPU: each candidate is faster than the one before it."""
    times = itertools.count(1000, -1)
    monkeypatch.setattr("sm70_kernels.timing.rotations", lambda *_: 2)
    monkeypatch.setattr("sm70_kernels.timing.graph_microseconds", lambda *_, **__: float(next(times)) ** 2 / 1000)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: CARD)
    monkeypatch.setattr("sm70_kernels.dense.operator.reserve_workspace", lambda device: None)
    monkeypatch.setattr("sm70_kernels.dense.operator.native", lambda x, *_: x.new_zeros(x.shape[0], 4))
    return []


def test_tuning_times_every_candidate_and_keeps_the_order(timed: list[str]) -> None:
    # Of the form that has two candidates, along a short K.
    shape = Shape(2600, 256, False)
    found = dense.tune_layers([shape], torch.device("cpu"), timed.append)
    assert [timing.rows for timing in found["timings"]] == list(dense.BUCKETS)
    assert [len(timing.microseconds) for timing in found["timings"]] == [2, 2, 2, 2, 1, 1]
    assert all(timing.chosen == 0 for timing in found["timings"]), "0.2 % is no difference"
    assert found["crossings"][0].expand_from == 512
    assert timed[0].startswith("n=2600 k=256 rows=8: ")
    assert len(timed) == 7
    kept = record.parse(record.dump(Record(CARD, source_hash(), found)))
    assert dense.choices(kept, CARD).expand_from == {layer_of(*shape): 512}


def test_a_candidate_with_other_bits_stops_the_tuning(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    values = itertools.count()

    def native(x: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.full((x.shape[0], 4), float(next(values)))

    monkeypatch.setattr("sm70_kernels.dense.operator.native", native)
    with pytest.raises(RuntimeError, match=r"dense_w8a16-threads256-\S+ gives other bits than the first"):
        dense.tune_layers([Shape(2600, 256, False)], torch.device("cpu"), timed.append)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens where there is no GPU")
def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sm70_kernels.tuning", "--out", str(tmp_path / "record.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "sm70_kernels.tuning: no NVIDIA GPU here, and nothing can be timed without one\n"
