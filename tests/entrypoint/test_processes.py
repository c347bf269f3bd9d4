from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from entrypoint import evidence, processes
from tests.waiting import LIMIT_S, until


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit status 0"),
        (2, "exit status 2"),
        (-9, "signal 9 SIGKILL (the kernel's out-of-memory killer sends it too)"),
        (-11, "signal 11 SIGSEGV"),
        (-99, "signal 99"),
    ],
)
def test_how_a_process_ended_is_told_in_words(code: int, words: str) -> None:
    assert processes.ending(code) == words


def test_a_tethered_command_dies_with_its_parent() -> None:
    command = processes.tethered(["sleep", "600"])
    inner = f"import subprocess; print(subprocess.Popen({command!r}).pid, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = psutil.Process(int(parent.stdout.readline()))
    until(lambda: child.name() == "sleep")
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    psutil.wait_procs([child], timeout=LIMIT_S)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_orphans_alone_are_killed_where_a_child_lives_on() -> None:
    script = """
import subprocess, sys, time
from entrypoint import processes
processes.adopt_orphans()
child = subprocess.Popen(["sh", "-c", "sleep 600 & (sleep 600 &) ; wait"])
deadline = time.monotonic() + 120
while len(processes.tree()) < 3 and time.monotonic() < deadline: time.sleep(0.02)
processes.kill_orphans(spare=child.pid)
while len(processes.tree()) > 2 and time.monotonic() < deadline: time.sleep(0.02)
print([one.ppid() == child.pid for one in processes.tree() if one.pid != child.pid], child.poll())
processes.kill_descendants()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "[True] None\n"


def test_orphans_are_adopted_killed_and_reaped() -> None:
    script = """
import subprocess, sys, time
from entrypoint import processes
processes.adopt_orphans()
subprocess.run(["sh", "-c", "sleep 600 & sleep 600 & true"])
deadline = time.monotonic() + 120
while len(processes.tree()) < 2 and time.monotonic() < deadline: time.sleep(0.02)
print(len(processes.tree()), processes.kill_descendants(), processes.tree())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout == "2 [] []\n"


def test_shared_memory_of_killed_processes_is_removed_by_their_tracker() -> None:
    holder = """
from multiprocessing import shared_memory
import time
print(shared_memory.SharedMemory(create=True, size=4096).name, flush=True)
time.sleep(600)
"""
    script = f"""
import subprocess, sys
from entrypoint import processes
from tests.waiting import LIMIT_S, until
processes.adopt_orphans()
child = subprocess.Popen([sys.executable, "-c", {holder!r}], stdout=subprocess.PIPE, text=True)
name = child.stdout.readline().strip()
# Between its fork and its exec a tracker looks like the process that it serves.
until(lambda: any(processes._tracks_resources(one) for one in processes.tree()))
processes._TRACKER_SECONDS = LIMIT_S
print(name, processes.kill_descendants(2 * LIMIT_S))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    name, left = done.stdout.split()
    assert left == "[]"
    assert not (Path("/dev/shm") / name).exists()


def test_a_stopped_process_is_noticed_by_name() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        process = psutil.Process(child.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED)
        assert processes.stopped([process]) == {child.pid: "sleep"}
    finally:
        child.kill()
        child.wait()


def test_a_process_that_is_gone_is_no_error() -> None:
    child = subprocess.Popen(["true"])
    process = psutil.Process(child.pid)
    child.wait()
    said: list[str] = []
    evidence.collect([process], said.append, wait=0)
    assert said == [f"{child.pid} ?: state gone"]
    assert processes.stopped([process]) == {}
    processes.kill([process])


def test_only_a_process_that_catches_the_dump_signal_counts_as_able_to_dump() -> None:
    assert evidence.catches(f"Name:\tx\nSigCgt:\t{1 << (signal.SIGUSR2 - 1):016x}\n")
    assert not evidence.catches("Name:\tx\nSigCgt:\t0000000000000000\n")
    assert not evidence.catches("")
