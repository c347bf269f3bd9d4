"""The step record: the split into prefill and decode, and writing under every disk."""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance import rundir
from appliance.rundir.step_line import StepLine
from appliance.vllm_plugin.progress import step_record
from appliance.vllm_plugin.progress.step_record import StepRecord, StepShape, shape
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


class TestShape:
    @pytest.mark.parametrize(
        ("computed", "new", "prompt", "known", "prefill", "decode"),
        [
            pytest.param(0, 100, 100, 100, 100, 0, id="a whole prompt"),
            pytest.param(0, 64, 100, 100, 64, 0, id="a chunk"),
            pytest.param(64, 36, 100, 100, 36, 0, id="the last chunk, which samples"),
            pytest.param(96, 4, 100, 100, 4, 0, id="what a prefix hit left"),
            pytest.param(100, 1, 100, 101, 0, 1, id="the first decode"),
            pytest.param(100, 1, 100, 100, 0, 1, id="a decode scheduled before its token is known"),
            pytest.param(140, 8, 100, 141, 0, 8, id="a decode with seven drafts"),
            pytest.param(0, 64, 100, 141, 64, 0, id="a preempted request starts anew"),
            pytest.param(64, 77, 100, 141, 76, 1, id="and decodes its next token with its last chunk"),
        ],
    )
    def test_one_request(self, computed: int, new: int, prompt: int, known: int, prefill: int, decode: int) -> None:
        assert shape([(computed, new, prompt, known)]) == StepShape(1, prefill, decode)

    def test_a_mixed_batch(self) -> None:
        assert shape([(0, 50, 80, 80), (120, 1, 100, 121), (10, 70, 80, 80)]) == StepShape(3, 120, 1)

    @given(prompt=st.integers(1, 500), output=st.integers(1, 50), chunk=st.integers(1, 128))
    def test_a_request_from_end_to_end(self, prompt: int, output: int, chunk: int) -> None:
        prefill = decode = computed = 0
        known = prompt
        while known < prompt + output:
            new = min(chunk, known - computed)
            step = shape([(computed, new, prompt, known)])
            prefill, decode, computed = prefill + step.prefill_tokens, decode + step.decode_tokens, computed + new
            known += computed == known
        assert (prefill, decode) == (prompt, output - 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_record, "FLUSH_S", 0.01)


def lines(folder: Path, name: str = rundir.STEPS) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        return [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return []


def written(folder: Path, step: int) -> bool:
    return {"t": 0.0, "step": step} in lines(folder)


def lost(record: StepRecord, steps: int) -> bool:
    return record.lost == steps


def test_lines_appear_without_being_asked_for(tmp_path: Path) -> None:
    record = StepRecord(tmp_path)
    record.append(StepLine.from_json({"t": 1.5, "step": 1}))
    until(lambda: lines(tmp_path) == [{"t": 1.5, "step": 1}])
    record.append(StepLine.from_json({"t": 2.5, "step": 2}))
    until(lambda: len(lines(tmp_path)) == 2)
    record.close()


def test_close_writes_all_and_ends_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_record, "FLUSH_S", 3600)
    record = StepRecord(tmp_path)
    for step in range(1000):
        record.append(StepLine.from_json({"t": 0.0, "step": step}))
    record.close()
    assert [line["step"] for line in lines(tmp_path)] == list(range(1000))
    assert "appliance-steps" not in {thread.name for thread in threading.enumerate()}


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    StepRecord(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_it_appends_to_what_is_there(tmp_path: Path) -> None:
    (tmp_path / rundir.STEPS).write_text('{"step":1}\n')
    record = StepRecord(tmp_path)
    record.append(StepLine.from_json({"step": 2}))
    record.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_rotation_keeps_two_files_within_the_bound(tmp_path: Path) -> None:
    record = StepRecord(tmp_path, rotate_bytes=200)
    for step in range(60):
        record.append(StepLine.from_json({"t": 0.0, "step": step}))
        if step % 4 == 3:
            until(partial(written, tmp_path, step))
    record.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["steps.1.jsonl", "steps.jsonl"]
    assert all(path.stat().st_size <= 200 for path in tmp_path.iterdir())
    kept = [line["step"] for name in ("steps.1.jsonl", "steps.jsonl") for line in lines(tmp_path, name)]
    assert kept == list(range(kept[0], 60))


def test_a_removed_file_is_begun_anew(tmp_path: Path) -> None:
    record = StepRecord(tmp_path)
    record.append(StepLine.from_json({"step": 1}))
    until((tmp_path / rundir.STEPS).exists)
    rundir.clear(tmp_path)
    record.append(StepLine.from_json({"step": 2}))
    record.close()
    assert lines(tmp_path) == [{"step": 2}]


def test_a_full_disk_loses_whole_steps_and_says_how_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / rundir.STEPS).symlink_to("/dev/full")
    record = StepRecord(tmp_path)
    with caplog.at_level(logging.INFO, logger="vllm.appliance.steps"):
        for step in (1, 2, 3):
            record.append(StepLine.from_json({"t": float(step), "step": step}))
            until(partial(lost, record, step))
        (tmp_path / rundir.STEPS).unlink()
        record.append(StepLine.from_json({"t": 4.0, "step": 4}))
        record.close()
    assert lines(tmp_path) == [
        {"t": 4.0, "lost": 3, "reason": "[Errno 28] No space left on device"},
        {"t": 4.0, "step": 4},
    ]
    assert [entry.message for entry in caplog.records] == [
        "The step record cannot be written, serving goes on: [Errno 28] No space left on device",
        "The step record is written again; 3 steps are missing",
    ]


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = StepRecord(tmp_path)
    record.append(StepLine.from_json({"step": 1}))
    until(lambda: len(lines(tmp_path)) == 1)
    whole = os.write

    def short(file: int, data: bytes) -> int:
        return whole(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", short)
    record.append(StepLine.from_json({"step": 2}))
    until(lambda: record.lost == 1)
    monkeypatch.undo()
    record.append(StepLine.from_json({"step": 3}))
    record.close()
    assert [line.get("step") or line["lost"] for line in lines(tmp_path)] == [1, 1, 3]


def test_no_folder_stops_nothing(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "none")
    record.append(StepLine.from_json({"step": 1}))
    until(lambda: record.lost == 1)
    (tmp_path / "none").mkdir()
    record.append(StepLine.from_json({"t": 9.0, "step": 2}))
    record.close()
    assert [line.get("lost") for line in lines(tmp_path / "none")] == [1, None]


def test_a_disk_that_hangs_costs_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_record, "PENDING_LINES", 10)
    monkeypatch.setattr(step_record, "FLUSH_S", 3600)
    record = StepRecord(tmp_path)
    for step in range(25):
        record.append(StepLine.from_json({"t": 0.0, "step": step}))
    assert len(record._pending) == 10
    record.close()
    written = lines(tmp_path)
    assert written[0]["lost"] == 15
    assert [line["step"] for line in written[1:]] == list(range(10))
