"""Tactics: timed once by rank 0, kept, shared; never in the way of a start. The timing itself is the kernels' test."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from appliance.vllm_plugin.sm70 import tactics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch imports


class Ranks:
    """A group of threads; each rank has its own view of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.sent: Any = None

    def rank(self, number: int) -> Member:
        return Member(self, number)


class Member:
    cpu_group = None

    def __init__(self, ranks: Ranks, number: int) -> None:
        self.ranks, self.rank_in_group, self.world_size = ranks, number, ranks.size

    def broadcast_object(self, obj: Any = None, src: int = 0) -> Any:
        if self.rank_in_group == src:
            self.ranks.sent = obj
        self.ranks.barrier.wait(60)
        return self.ranks.sent


@pytest.fixture
def adopted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ranks adopt, on a card of this name whose candidates take no time."""
    from sm70_kernels.dense import choice, tune
    from sm70_kernels.registry import source_hash
    from sm70_kernels.tuning import record
    from sm70_kernels.tuning import tune as timing

    found: list[str] = []
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "Tesla V100-SXM2-16GB")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (7, 0))
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr(choice, "adopt", lambda _: found.append("adopted"))
    empty = dict.fromkeys(record.row_types(), ())

    def timed(_ranks: int, _device: object, report: Callable[[str], None]) -> record.Record:
        found.append("timed")
        report("n=1 k=1: candidate 0 chosen")
        return record.Record("Tesla V100-SXM2-16GB", source_hash(), empty)

    monkeypatch.setattr(timing, "tune", timed)
    assert tune.choices(timed(1, None, print), "Tesla V100-SXM2-16GB").tactics == {}
    found.clear()
    return found


def test_rank_0_times_once_and_all_adopt(tmp_path: Path, adopted: list[str]) -> None:
    ranks = Ranks(4)
    outcomes: list[tactics.Outcome] = []
    threads = [
        threading.Thread(target=lambda n=n: outcomes.append(tactics.settle(ranks.rank(n), tmp_path / "sm70")))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(adopted) == ["adopted"] * 4 + ["timed"]
    assert {outcome.source for outcome in outcomes} == {"timed"}
    assert len({outcome.text for outcome in outcomes}) == 1
    assert len(list((tmp_path / "sm70").iterdir())) == 1


def test_the_next_start_takes_what_was_kept(tmp_path: Path, adopted: list[str]) -> None:
    group = Ranks(1).rank(0)
    first = tactics.settle(group, tmp_path)
    again = tactics.settle(group, tmp_path)
    assert (first.source, again.source, adopted.count("timed")) == ("timed", "cache", 1)
    assert again.told()["record_sha256"] == first.told()["record_sha256"]


@pytest.mark.parametrize("content", ["{", '{"schema": 1, "card": "another", "source_hash": "x"}'])
def test_a_record_that_does_not_hold_is_timed_anew(tmp_path: Path, adopted: list[str], content: str) -> None:
    group = Ranks(1).rank(0)
    tactics.settle(group, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert tactics.settle(group, tmp_path).source == "timed"
    assert adopted.count("timed") == 2


def test_timing_that_takes_too_long_leaves_the_tables_choice(
    adopted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 100.0, 100.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now, 100.0))
    outcome = tactics.settle(Ranks(1).rank(0), None, limit=5)
    assert (outcome.source, outcome.text, outcome.reason) == ("table", None, "timing took longer than 5 s")
    assert "adopted" not in adopted
    assert outcome.told() == {
        "source": "table",
        "record_sha256": None,
        "seconds": 100.0,
        "reason": "timing took longer than 5 s",
    }


@pytest.mark.usefixtures("adopted")
def test_timing_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("candidate 3 gives other bits\nthan the first")

    monkeypatch.setattr("sm70_kernels.tuning.tune.tune", fails)
    outcome = tactics.settle(Ranks(1).rank(0), None)
    assert outcome.reason == "RuntimeError: candidate 3 gives other bits"


def test_another_card_or_kernel_has_another_file() -> None:
    assert tactics.file_name("Tesla V100-SXM2-16GB", "a" * 64, 4) == (
        "tactics-tesla-v100-sxm2-16gb-aaaaaaaaaaaaaaaa-tp4.json"
    )


def test_a_card_that_emulates_the_instruction_is_not_timed(monkeypatch: pytest.MonkeyPatch, adopted: list[str]) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    outcome = tactics.settle(Ranks(1).rank(0), None)
    assert (outcome.source, adopted) == ("table", [])
    assert outcome.reason == "compute capability 9.0 emulates mma.sync.m8n8k4, so its times choose nothing"


def test_a_start_that_ran_past_its_limit_is_not_repeated_by_the_next(
    tmp_path: Path, adopted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 100.0, 100.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now, 100.0))
    group = Ranks(1).rank(0)
    assert tactics.settle(group, tmp_path, limit=5).reason == "timing took longer than 5 s"
    again = tactics.settle(group, tmp_path, limit=5)
    (mark,) = tmp_path.iterdir()
    assert again.reason == f"at an earlier start timing took longer than 5 s; remove {mark} to time again"
    assert (again.source, adopted.count("timed")) == ("table", 1)
    mark.unlink()
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert tactics.settle(group, tmp_path, limit=5).source == "timed"
