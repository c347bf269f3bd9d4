"""What a person sees of long work: a line at the start, one now and then, one at the end; nothing for --json."""

from __future__ import annotations

import io

import pytest

from appliance.models.progress import LogProgress, SilentProgress, TerminalProgress, for_stream, in_units, time_left


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_every_five_seconds_with_rate_and_time_left() -> None:
    clock, lines = Clock(), list[str]()
    with LogProgress(lines.append, clock).task("downloading m", total=30e9, done=10e9) as task:
        for _ in range(10):
            clock.now += 1
            task.advance(1e9)
    assert lines == [
        "downloading m: 10.0 GB of 30.0 GB (33 %)",
        "downloading m: 15.0 GB of 30.0 GB (50 %), 1.0 GB/s, 15 s left",
        "downloading m: 20.0 GB of 30.0 GB (67 %), 1.0 GB/s, 10 s left",
        "downloading m: done in 10 s",
    ]


def test_what_was_there_before_does_not_count_as_speed() -> None:
    clock, lines = Clock(), list[str]()
    with LogProgress(lines.append, clock).task("t", total=100e6, done=90e6) as task:
        clock.now += 5
        task.advance(5e6)
    assert "1.0 MB/s, 5 s left" in lines[1]


def test_work_without_a_known_amount_shows_its_time_and_what_it_is_at() -> None:
    clock, lines = Clock(), list[str]()
    with LogProgress(lines.append, clock).task("converting m", unit="seconds") as task:
        clock.now += 6
        task.note("writing safetensors")
        task.reach(6)
        clock.now += 6
        task.reach(12)
    assert lines == [
        "converting m: started",
        "converting m: 0 s, writing safetensors",
        "converting m: 12 s, writing safetensors",
        "converting m: done in 12 s",
    ]


def test_time_against_a_budget() -> None:
    clock, lines = Clock(), list[str]()
    with LogProgress(lines.append, clock).task("loading", total=600, unit="seconds") as task:
        clock.now += 5
        task.reach(5)
    assert lines[1] == "loading: 5 s of 600 s"


def test_work_that_fails_is_not_called_done() -> None:
    lines = list[str]()
    with pytest.raises(OSError, match="gone"), LogProgress(lines.append).task("t"):
        raise OSError("gone")
    assert lines == ["t: started"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_stream_gets_what_suits_it() -> None:
    assert isinstance(for_stream(io.StringIO()), LogProgress)
    assert isinstance(for_stream(Terminal()), TerminalProgress)
    assert isinstance(for_stream(Terminal(), silent=True), SilentProgress)


def test_a_terminal_shows_the_task_and_keeps_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = TerminalProgress(stream)
    progress.say("kept [as] written")
    with progress.task("hashing", total=2e6) as task:
        task.advance(1e6)
        task.reach(2e6)
        task.note("last file")
    with progress.task("loading", total=600, unit="seconds") as task:
        task.reach(5)
    shown = stream.getvalue()
    assert "kept [as] written" in shown
    assert "hashing" in shown
    assert "last file" in shown
    assert "of 600 s" in shown


def test_silence() -> None:
    progress = SilentProgress()
    progress.say("nobody hears")
    with progress.task("t", total=1) as task:
        task.advance(1)
        task.reach(1)
        task.note("x")


@pytest.mark.parametrize(
    ("amount", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e6, "2.5 MB"), (30.1e9, "30.1 GB")]
)
def test_amounts(amount: float, words: str) -> None:
    assert in_units(amount, "bytes") == words


@pytest.mark.parametrize(("seconds", "words"), [(12, "12 s left"), (300, "5 min left"), (5400, "1.5 h left")])
def test_times_left(seconds: float, words: str) -> None:
    assert time_left(seconds) == words
