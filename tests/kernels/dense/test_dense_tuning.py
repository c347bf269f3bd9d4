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
from sm70_kernels.dense.alternatives import around, built, fits, parts
from sm70_kernels.dense.cases import dense_layers
from sm70_kernels.dense.table import INVARIANT_ROWS, Tactic, bucket_of, candidates, layer_of, specialisation
from sm70_kernels.dense.tune import NEVER, Crossing, Shape, Timing, crossing_of
from sm70_kernels.errors import KernelError
from sm70_kernels.registry import source_hash
from sm70_kernels.tuning import record
from sm70_kernels.tuning.alike import first_of_the_best
from sm70_kernels.tuning.record import Record

if TYPE_CHECKING:
    from pathlib import Path

    from sm70_kernels.registry import Specialisation
    from sm70_kernels.tuning.trial import Trial

CARD = "Tesla V100-SXM2-16GB"
DOWN = Shape(5120, 4352, False)
TACTICS = tuple(tuple(tactic) for tactic in candidates(layer_of(*DOWN), 8))
TIMED = Timing(*DOWN, 8, TACTICS, (31.0, 29.5), 1)
CROSSED = Crossing(*DOWN, (256, 512), (300.0, 600.0), (400.0, 500.0), 512)
KEPT = Record(CARD, source_hash(), {"timings": (TIMED,), "crossings": (CROSSED,)})


def with_timing(timing: Timing) -> Record:
    """Return the kept record with another timing."""
    return dataclasses.replace(KEPT, sections={**KEPT.sections, "timings": (timing,)})


def test_times_that_are_alike_go_by_the_tables_order() -> None:
    assert first_of_the_best([30.0, 29.8, 29.75]) == 0
    assert first_of_the_best([30.9, 29.8, 29.75]) == 1
    assert first_of_the_best([30.9, 29.99, 30.01]) == 1
    assert first_of_the_best([29.0]) == 0


def test_a_difference_under_three_percent_decides_nothing() -> None:
    assert first_of_the_best([102.9, 100.0]) == 0
    assert first_of_the_best([103.1, 100.0]) == 1


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
        (record.dump(KEPT).replace('"schema": 2', '"schema": 1'), "not a tuning record of schema 2"),
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
            "has 9 times of 2 tactics for n=5120, k=4352, 8 rows, and chose number 1",
        ),
        (with_timing(dataclasses.replace(TIMED, chosen=2)), "and chose number 2"),
        (
            with_timing(dataclasses.replace(TIMED, tactics=(TACTICS[0], (1, 2, 2, 4, 1, 4, 48, 1)))),
            r"chose \[1, 2, 2, 4, 1, 4, 48, 1\] for n=5120, k=4352, 8 rows, which that layer cannot have",
        ),
        (
            with_timing(dataclasses.replace(TIMED, tactics=(TACTICS[0], (1, 1, 1, 8, 1, 4, 64, 1)))),
            r"cuts K of a layer of 160 tiles into \{8: 8, 16: 4, 24: 4, 32: 4, 48: 4, 64: 4\} parts by rows",
        ),
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
    monkeypatch.setattr("sm70_kernels.launch.workspace.reserve", lambda device: None)
    monkeypatch.setattr("sm70_kernels.dense.operator.native", lambda x, *_: x.new_zeros(x.shape[0], 4))
    return []


def test_tuning_times_every_candidate_and_keeps_the_order(timed: list[str]) -> None:
    # Of the form that has two candidates, along a short K.
    shape = Shape(2600, 256, False)
    found = dense.tune_layers([shape], torch.device("cpu"), timed.append)
    assert [timing.rows for timing in found["timings"]] == list(dense.BUCKETS)
    layer = layer_of(*shape)
    for timing in found["timings"]:
        own = candidates(layer, timing.rows)
        assert timing.tactics[: len(own)] == own
        assert timing.tactics == built(layer, timing.rows)
        assert len(timing.microseconds) == len(timing.tactics) > len(own)
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


@pytest.mark.parametrize("layer", dense_layers(4).values(), ids=str)
def test_a_layer_may_have_every_cut_that_is_built(layer: tuple[int, int, bool]) -> None:
    one = layer_of(*layer)
    for rows in dense.BUCKETS:
        own, every, more = candidates(one, rows), built(one, rows), around(one, rows)
        assert every[: len(own)] == own
        assert more[: len(every)] == every
        assert len(set(more)) == len(more) > len(every)
        assert all(fits(one, rows, tactic) for tactic in more)
        # Of the cuts of K and of the columns of a thread block there is a choice.
        assert len({parts(tactic) for tactic in every}) > 1
        assert len({tactic.nt * tactic.wn for tactic in every}) > 1
        assert {bucket_of(rows)} == {8 * tactic.mt for tactic in more}


def test_a_tactic_that_the_kernel_refuses_does_not_fit() -> None:
    one = layer_of(5120, 4352, False)
    good = candidates(one, 8)[0]
    assert fits(one, 8, good)
    for wrong in (
        {"mt": 2},
        {"wk": 16},
        {"wk": 3},
        {"chunk": 48},
        {"depth": 8},
        {"nt": 0},
        {"split": 16},
        {"resident": 64},
    ):
        assert not fits(one, 8, good._replace(**wrong)), wrong
    assert not fits(layer_of(5120, 256, False), 8, good._replace(wk=2, split=2)), "two blocks of K make no four parts"
    assert not fits(layer_of(4352, 5120, True), 8, Tactic(1, 1, 2, 4, 1, 4, 64, 1)), "gate and up lie in one warp"
    assert dense.BUCKETS[-1] == INVARIANT_ROWS


def test_another_cut_is_taken_for_all_rows_of_a_layer_or_for_none(
    timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(2600, 1024, False)

    def faster_in_eight(trial: Trial) -> tuple[float, ...]:
        return tuple(10.0 if candidate.bits == 8 else 11.0 for candidate in trial.candidates)

    monkeypatch.setattr(dense, "microseconds", faster_in_eight)
    found = dense.tune_layers([shape], torch.device("cpu"), timed.append)
    assert [parts(Tactic(*each.tactics[each.chosen])) for each in found["timings"]] == [8] * 6
    kept = record.parse(record.dump(Record(CARD, source_hash(), found)))
    adopted = dense.choices(kept, CARD).tactics
    assert {parts(tactic) for tactic in adopted.values()} == {8}

    def faster_at_eight_rows(trial: Trial) -> tuple[float, ...]:
        few = trial.what.endswith("rows=8")
        return tuple(10.0 if few and candidate.bits == 8 else 11.0 for candidate in trial.candidates)

    monkeypatch.setattr(dense, "microseconds", faster_at_eight_rows)
    found = dense.tune_layers([shape], torch.device("cpu"), timed.append)
    own = {parts(candidates(layer_of(*shape), rows)[0]) for rows in dense.BUCKETS}
    # 65 us in all against 66 is no difference.
    assert {parts(Tactic(*each.tactics[each.chosen])) for each in found["timings"]} == own == {4}


def test_what_must_be_compiled_first_is_tried_when_asked(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(2600, 1024, False)
    refused = around(layer_of(*shape), 8)[-1]

    def load(spec: Specialisation, form: str) -> bytes:
        if spec == specialisation(refused, False):
            raise KernelError("operator_missing:dense_w8a16", "it spills")
        assert form == "cubin"
        return b""

    monkeypatch.setattr("sm70_kernels.build.store.load", load)
    found = dense.tune_layers([shape], torch.device("cpu"), timed.append, compiling=True)
    tried = found["timings"][0].tactics
    assert set(tried) == set(around(layer_of(*shape), 8)) - {refused}
    assert any(line.endswith("is not tried: it spills") for line in timed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens where there is no GPU")
def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sm70_kernels.tuning", "--out", str(tmp_path / "record.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "sm70_kernels.tuning: no NVIDIA GPU here, and nothing can be timed without one\n"
