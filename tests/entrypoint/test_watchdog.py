from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from entrypoint.watchdog import Watchdog

MEGABYTE = 1 << 20


def watchdog() -> Watchdog:
    return Watchdog(began=100.0, budget=600.0, patience=60.0)


def test_a_start_within_its_times_is_left_alone() -> None:
    assert watchdog().verdict(160.0, "starting") is None


def test_standing_still_tells_for_how_long_and_what_came_last() -> None:
    dog = watchdog()
    dog.line(130.0, "a", "Loading shards 1/9")
    assert dog.verdict(190.0, "loading") is None
    assert dog.verdict(191.0, "loading") == (
        'phase loading stands still: no progress for 61 s (the profile allows 60 s); the last was "Loading shards 1/9"'
    )


def test_the_whole_budget_counts_although_there_is_progress() -> None:
    dog = watchdog()
    dog.line(700.0, "a", "Capturing 3/9")
    assert dog.verdict(701.0, "warming") == (
        "the start took longer than its budget of 600 s: it is in phase warming after 601 s; "
        'the last progress was "Capturing 3/9" 1 s ago'
    )


def test_a_line_that_came_before_is_no_progress() -> None:
    dog = watchdog()
    dog.line(110.0, "a", "text")
    dog.line(165.0, "a", "text")
    assert dog.verdict(171.0, "loading") is not None


def test_megabytes_through_calls_and_kilobytes_from_storage_are_progress() -> None:
    for calls, storage in ((50 * MEGABYTE, 0), (0, MEGABYTE)):
        dog = watchdog()
        dog.read(150.0, 0, 0)
        dog.read(151.0, calls, storage)
        assert dog.verdict(205.0, "loading") is None


def test_what_a_slow_look_missed_is_measured_by_its_time() -> None:
    dog = watchdog()
    dog.read(100.0, 0, 0)
    dog.read(155.0, 2 * MEGABYTE, 0)
    assert dog.verdict(161.0, "loading") is not None


@given(st.lists(st.integers(min_value=0, max_value=50_000), min_size=70, max_size=90))
def test_the_small_reads_of_an_idle_process_never_are(reads: list[int]) -> None:
    dog, calls = watchdog(), 0
    for second, amount in enumerate(reads):
        calls += amount
        dog.read(100.0 + second, calls, 0)
    assert dog.verdict(100.0 + len(reads), "loading") is not None


def test_a_process_that_ends_takes_its_count_along_and_that_is_no_progress() -> None:
    dog = watchdog()
    dog.read(101.0, 500 * MEGABYTE, 0)
    dog.read(102.0, 0, 0)
    assert dog.verdict(161.0, "loading") is not None
