"""Measures the sidecar as an orchestrator meets it while the engine takes every core: latency of health, and memory."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.bench import run_directory
from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

LATENCY_LIMIT_S = 0.020
RESIDENT_LIMIT_BYTES = 120e6
"""p99 of health while the engine is busy, and resident memory (docs/architecture.md, "Time and memory budgets")."""

SPACING_S = 0.005
"""Between two questions; probes come seconds apart, and a pause lets the scheduler forget the one before."""

ELSEWHERE = ("/metrics", "/status", "/v1/status", "/v1/cache", "/v1/profile", "/v1/sm70/acceleration", "/openapi.json")
"""What others ask meanwhile, one of them every quarter of a second."""

START_S = 60.0


@dataclass(frozen=True)
class Figure:
    """One figure in `unit`, against the most that was promised; without a `limit` it is only told."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def within(self) -> bool:
        """Whether the promise is kept."""
        return self.limit is None or self.value <= self.limit


def measure(scratch: Path, requests: int, environment: Mapping[str, str]) -> list[Figure]:
    """Start the sidecar over a run directory in `scratch`, take every core, ask `requests` times for health.

    Raises CheckError when the sidecar does not start or does not answer.
    """
    run_dir = scratch / "run"
    run_dir.mkdir()
    run_directory.write_ready(run_dir)
    with _sidecar(run_dir, scratch / "cache", environment) as (process, port), _kept_fresh(run_dir):
        for path in ELSEWHERE:
            _ask(port, path)
        alone = sorted(_ask(port, "/health/ready") for _ in range(requests // 4))
        with _busy(os.cpu_count() or 1), _asked_elsewhere(port):
            used = ran(process.pid)
            taken = sorted(_spaced(lambda: _ask(port, "/health/ready")) for _ in range(requests))
            used = (ran(process.pid) - used) / requests
        resident, peak = memory(Path(f"/proc/{process.pid}/status").read_text(encoding="ascii"))
    return [
        Figure("sidecar health, machine as it is, p99", quantile(alone, 0.99), "s"),
        Figure("sidecar health, every core busy, median", quantile(taken, 0.5), "s"),
        Figure("sidecar health, every core busy, p99", quantile(taken, 0.99), "s", LATENCY_LIMIT_S),
        Figure("sidecar health, every core busy, max", taken[-1], "s"),
        Figure("sidecar, every core busy, processor a request", used, "s"),
        Figure("sidecar resident memory", resident, "B", RESIDENT_LIMIT_BYTES),
        Figure("sidecar resident memory, peak", peak, "B", RESIDENT_LIMIT_BYTES),
    ]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the ordered values that `share` of them do not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def memory(status: str) -> tuple[float, float]:
    """Return resident memory and its peak in bytes out of /proc/PID/status."""
    found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", status, re.MULTILINE))
    return int(found["VmRSS"]) * 1024.0, int(found["VmHWM"]) * 1024.0


def ran(pid: int) -> float:
    """Return the seconds for which a process has run so far, other threads included."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9


def text(value: float | None, unit: str) -> str:
    """Return a value for people: milliseconds, megabytes."""
    scale, shown = {"s": (1e3, "ms"), "B": (1e-6, "MB")}[unit]
    return "" if value is None else f"{value * scale:.1f} {shown}"


def _ask(port: int, path: str) -> float:
    """Ask once on a new connection, as a probe does. Returns the seconds that it took."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise CheckError(f"the sidecar does not answer {path}: {str(error) or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise CheckError(f"the sidecar answers {path} with {answer.status} instead of 200")
    return time.perf_counter() - began


def _spaced(ask: Callable[[], float]) -> float:
    time.sleep(SPACING_S)
    return ask()


@contextmanager
def _sidecar(
    run_dir: Path, cache_dir: Path, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "appliance.cli", "sidecar", "--port", "0", "--host", "127.0.0.1"]
    command += ["--run-dir", str(run_dir), "--cache-dir", str(cache_dir)]
    log = run_dir.with_name("sidecar.log")
    with log.open("w", encoding="utf-8") as err:
        process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stderr=err, text=True, start_new_session=True
        )
    try:
        yield process, _port(process, log)
    finally:
        process.kill()
        process.wait()


def _port(process: subprocess.Popen[str], log: Path) -> int:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        said = log.read_text(encoding="utf-8")
        if found := re.search(r"listening on http://\S+?:(\d+)", said):
            return int(found[1])
        if process.poll() is not None:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise CheckError(f"the sidecar ended with status {process.returncode}: {last[0]}")
        time.sleep(0.05)
    raise CheckError(f"the sidecar does not listen after {START_S:g} s; run `appliance sidecar` alone to see why")


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Take `count` cores, as an engine does that computes on each."""
    code = f"import os\nfor _ in range({count - 1}):\n    if not os.fork(): break\nwhile True: pass"
    # A session of its own, as the guardian gives the engine: Linux shares the cores out by session, or by container.
    engine = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    try:
        time.sleep(0.5)
        yield
    finally:
        os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()


@contextmanager
def _kept_fresh(run_dir: Path) -> Iterator[None]:
    """Beat for the engine and its guardian."""
    with _repeated(0.5, lambda: run_directory.write_ready(run_dir)):
        yield


@contextmanager
def _asked_elsewhere(port: int) -> Iterator[None]:
    """Let scrapers and a status page ask, too."""
    paths = iter(ELSEWHERE * 100_000)

    def ask() -> None:
        with suppress(CheckError):
            _ask(port, next(paths))

    with _repeated(0.25, ask):
        yield


@contextmanager
def _repeated(every_s: float, work: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
