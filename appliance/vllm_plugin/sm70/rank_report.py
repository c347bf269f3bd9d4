"""ranks/RANK.json: what one worker says of its routes, readable while it runs and complete when it ends."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from appliance import rundir
from appliance.acceleration import report
from appliance.acceleration.gather import gathered
from appliance.rundir.acceleration import RouteReport
from appliance.rundir.rank_report import RankReport, read_all
from appliance.vllm_plugin.sm70.counters import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from appliance.acceleration.report import RouteState
    from appliance.vllm_plugin.sm70.counters import Counters

EVERY_S = 5.0
"""Seconds between two writings of a rank's file, at the least."""

logger = logging.getLogger("vllm.appliance.sm70")

_NOTES: dict[str, dict[str, Any]] = {}
_RESIDENT: dict[str, int] = {}


def note(route: str, **details: object) -> None:
    """Add to a route's details in this rank's report: `tactic`, `resident_bytes`, and whatever else binding it told."""
    _NOTES[route] = {**_NOTES.get(route, {}), **details}


def tell_resident(count: dict[str, int]) -> None:
    """Say what stays in this rank's memory, in bytes by what it is."""
    _RESIDENT.clear()
    _RESIDENT.update(count)


def record(
    states: Mapping[str, RouteState], kernels: Mapping[str, str], counters: Counters, refused: str | None = None
) -> RankReport:
    """Return the rank's record: each route with state, reason, source and details; counters; the kernels' hashes."""
    routes = {}
    for name, state in states.items():
        details = state.details | _NOTES.get(name, {})
        if state.state != "not_applicable":
            details["counters"] = counters.of_route(name, serves=state.state == "enabled")
        routes[name] = replace(_route(state), details=details)
    counts, resident = counters.snapshot(), dict(_RESIDENT)
    return RankReport(os.getpid(), rundir.clock(), routes, dict(kernels), counts, refused, resident)


def _route(state: RouteState) -> RouteReport:
    return RouteReport(state=state.state, reason=state.reason, source=state.source, details=dict(state.details))


def refusal(run_dir: Path) -> str | None:
    """Return the line by which the lowest refusing rank of this run directory refused to start, None where none did."""
    lines = (report.refused for _, report in sorted(read_all(run_dir).items()))
    return next((line for line in lines if line is not None), None)


def publish(
    run_dir: Path,
    profile: str,
    expected: Iterable[str],
    ranks: Mapping[int, Mapping[str, RouteState]],
    rehearsal: str | None = None,
) -> dict[str, Any]:
    """Write acceleration.json out of the states of all ranks, once they have decided; rank 0 does. Raises OSError.

    Health probes read that file alone, so a rank that differs shows there too. Returns what was written.
    """
    told = {
        rank: RankReport(routes={name: _route(state) for name, state in states.items()})
        for rank, states in ranks.items()
    }
    first = ranks[min(ranks)]
    whole = gathered(report.report(profile, expected, dict(first), rehearsal), told, len(ranks))
    of_ranks = ("ranks", "missing_ranks", "kernel_builds", "counters", "resident_bytes")
    written = {name: value for name, value in whole.items() if name not in of_ranks}
    for route in written["routes"].values():
        route["details"].pop("ranks", None)
    rundir.write(run_dir, rundir.ACCELERATION, written)
    return written


class RankReporter:
    """Keeps a rank's file fresh: at most once in `every` seconds, only when something changed, and at the end."""

    def __init__(
        self,
        run_dir: Path,
        rank: int,
        states: Mapping[str, RouteState],
        kernels: Mapping[str, str],
        *,
        counters: Counters = COUNTERS,
        every: float = EVERY_S,
    ) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._states = dict(states)
        self._kernels = dict(kernels)
        self._counters = counters
        self._every = every
        self._written: tuple[dict[str, int], dict[str, dict[str, Any]]] | None = None
        self._complained = False
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="sm70-rank-report", daemon=True)
        # A spawned process ends without atexit; multiprocessing runs these, after SIGTERM's SystemExit too.
        self._finalize = Finalize(None, self.close, exitpriority=100)

    def start(self) -> None:
        """Write the file, and go on writing it from a thread."""
        self.flush()
        self._thread.start()

    def refuse(self, line: str) -> None:
        """Write the file with the line by which this rank refuses to start."""
        self._write(line)

    def flush(self) -> None:
        """Write the file where a count or a note changed since it was written. A full disk is logged, once."""
        with self._lock:
            notes = {name: dict(told) for name, told in list(_NOTES.items())} | {"": dict(_RESIDENT)}
            now = (self._counters.snapshot(), notes)
            if now != self._written:
                self._write()
                self._written = now

    def close(self) -> None:
        """Stop the thread and write what the counters have come to. Called from the worker's shutdown; idempotent."""
        self._ending.set()
        self.flush()
        self._finalize.cancel()

    def _write(self, refused: str | None = None) -> None:
        try:
            record(self._states, self._kernels, self._counters, refused).write(self._run_dir, self._rank)
        except OSError as error:
            if not self._complained:
                self._complained = True
                logger.error("The report of rank %d cannot be written to %s: %s", self._rank, self._run_dir, error)

    def _run(self) -> None:
        while not self._ending.wait(self._every):
            self.flush()
