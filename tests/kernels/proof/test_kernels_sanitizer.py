"""Racecheck's log: whose hazards they are, and what they are worth beside those of the control kernel."""

from __future__ import annotations

import pytest

from sm70_kernels.device_checks.table import BLOCK_BARRIER, MMA_LANES, NAMED_BARRIER
from sm70_kernels.proof.sanitizer import Report, announcement, read, verdict

RACE = """========= Error: Race reported between Write access at {entry}+0x25b0
=========     and Read access at {entry}+0x29c0 [256 hazards]
========= """
DONE = "5 of 9 cases, 3 kernels, 0 results wrong"
NAMED = announcement(NAMED_BARRIER, "bar.sync %r8, %r9;")
BLOCK = announcement(BLOCK_BARRIER, "bar.sync \t0;")
DENSE = "launch dense_w8a16-threads256-wn2 w8a16 named"
SINGLE = "launch dense_w8a16-threads256-wn1 w8a16 other"
CONTROL_RACE, DENSE_RACE = (RACE.format(entry=entry) for entry in ("barrier_control", "w8a16"))


def read_lines(*lines: str) -> Report:
    return read("\n".join(lines))


BLIND = read_lines(NAMED, CONTROL_RACE, BLOCK, DONE)
CLEAR = read_lines(NAMED, BLOCK, DONE)


@pytest.mark.parametrize(
    ("ptx", "kind"),
    [
        ("bar.sync %r8, %r9;", "named"),
        ("barrier.cta.sync 1, 64;", "named"),
        ("bar.sync \t0;", "other"),
        ("barrier.sync 0;", "other"),
        ("bar.warp.sync \t-1;", "other"),
        ("ret;", "other"),
    ],
)
def test_a_launch_is_announced_with_its_barriers(ptx: str, kind: str) -> None:
    assert announcement(MMA_LANES, ptx) == f"launch mma_lanes-threads32 mma_lanes {kind}"


def test_hazards_are_those_of_the_launch_before_them() -> None:
    report = read_lines(DENSE, DENSE_RACE, DENSE_RACE, SINGLE, DENSE, DENSE_RACE, DONE)
    assert report.hazards == {"dense_w8a16-threads256-wn2": 3}
    assert report.launched == {"dense_w8a16-threads256-wn2", "dense_w8a16-threads256-wn1"}
    assert report.named == {"dense_w8a16-threads256-wn2"}
    assert (report.done, report.unowned, report.wrong) == (DONE, 0, 0)


def test_without_hazards_it_is_clean() -> None:
    run = read(f"{DENSE}\n{DONE}")
    assert verdict(CLEAR, run, 0) == f"clean: {DONE}"
    assert verdict(CLEAR, read(DENSE), 124) == "not finished: no hazard until its time was up"


def test_hazards_at_named_barriers_count_for_nothing_when_the_control_has_them_too() -> None:
    said = verdict(BLIND, read_lines(DENSE, DENSE_RACE, DENSE_RACE, SINGLE, DONE), 9)
    assert said.startswith("2 hazards, all in kernels that use named barriers (1 of 1 that ran); the control kernel ")
    assert "barrier_control-threads128-named1, correct by construction, is reported too (1)" in said
    assert said.endswith(DONE)


@pytest.mark.parametrize(
    ("control", "log", "status", "says"),
    [
        (CLEAR, (DENSE, DENSE_RACE, DONE), 9, "and none in the control kernel barrier_control-threads128-named1"),
        (read(""), (DENSE, DENSE_RACE, DONE), 9, "and none in the control kernel"),
        (read(f"{NAMED}\n{CONTROL_RACE}"), (DENSE, DENSE_RACE, DONE), 9, "did not run"),
        (
            read_lines(NAMED, CONTROL_RACE, BLOCK, CONTROL_RACE, DONE),
            (DENSE, DENSE_RACE, DONE),
            9,
            "1 hazards or",
        ),
        (BLIND, (SINGLE, DENSE_RACE, DONE), 9, "some in kernels without named barriers: dense_w8a16-threads256-wn1"),
        (BLIND, (DENSE, DONE, DENSE_RACE), 9, "1 of them of no known launch"),
        (BLIND, (NAMED, DENSE_RACE, DONE), 9, "1 of them of no known launch"),
        (BLIND, (DENSE, "Traceback"), 1, "status 1, 0 hazards"),
        (BLIND, (DENSE, DONE.replace("0 results", "2 results")), 1, "2 results wrong"),
        (BLIND, (DENSE, DENSE_RACE), 9, "status 9, 1 hazards"),
    ],
)
def test_anything_else_has_failed(control: Report, log: tuple[str, ...], status: int, says: str) -> None:
    said = verdict(control, read_lines(*log), status)
    assert said.startswith("failed: ")
    assert says in said
