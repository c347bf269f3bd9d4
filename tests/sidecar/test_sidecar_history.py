"""Tokens and steps a second, out of heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from appliance import rundir
from appliance.sidecar.history import KEPT_S, History, Rates

if TYPE_CHECKING:
    from pathlib import Path


def beat(folder: Path, at: float, generated: float, pid: int = 1, **more: Any) -> None:
    counts = {"prompt_tokens": generated * 10, "generation_tokens": generated, "step": generated / 2}
    rundir.write(folder, rundir.HEARTBEAT, {"at": at, "pid": pid, **counts, **more})


def test_rates_are_means_over_the_window(tmp_path: Path) -> None:
    history = History(tmp_path)
    for second in range(31):
        beat(tmp_path, 100.0 + second, second * 4)
        history.sample()
    assert history.rates(130.0) == Rates(40.0, 4.0, 2.0, 10.0)
    assert history.course() == [4.0] * 30


def test_the_same_heartbeat_counts_once(tmp_path: Path) -> None:
    history = History(tmp_path)
    beat(tmp_path, 100.0, 5)
    history.sample()
    history.sample()
    assert history.rates(100.0) == Rates()
    assert history.course() == []


def test_an_engine_that_no_longer_beats_has_no_rate(tmp_path: Path) -> None:
    history = History(tmp_path)
    for second in range(5):
        beat(tmp_path, 100.0 + second, second)
        history.sample()
    assert history.rates(104.0).generation_tokens == 1.0
    assert history.rates(200.0) == Rates()


@pytest.mark.parametrize("restart", [{"pid": 2}, {"generated": 0.0}, {"at": 50.0}])
def test_a_restarted_engine_begins_anew(restart: dict[str, Any], tmp_path: Path) -> None:
    history = History(tmp_path)
    for second in range(5):
        beat(tmp_path, 100.0 + second, 1000 + second)
        history.sample()
    beat(tmp_path, **{"at": 105.0, "generated": 1010, **restart})
    history.sample()
    assert history.course() == []


def test_old_heartbeats_are_forgotten(tmp_path: Path) -> None:
    history = History(tmp_path)
    for second in range(300):
        beat(tmp_path, float(second), second)
        history.sample()
    assert len(history.course()) == KEPT_S


@pytest.mark.parametrize("record", [None, {}, {"at": 1}, {"at": "1", "step": 1}, {"at": 1, "step": True}])
def test_a_heartbeat_that_says_nothing_is_left_out(record: dict[str, Any] | None, tmp_path: Path) -> None:
    if record is not None:
        rundir.write(tmp_path, rundir.HEARTBEAT, record)
    history = History(tmp_path)
    history.sample()
    assert history.rates(1.0) == Rates()
