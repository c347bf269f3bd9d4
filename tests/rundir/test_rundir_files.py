"""Files of the run directory: whole for every reader, readable by another user's sidecar, fresh on a full disk."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from appliance import rundir

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.monkeypatch import MonkeyPatch

ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
from appliance import rundir
from appliance.health import judge

folder = Path(sys.argv[1])
phase = {"phase": "ready", "models": ["smol"], "plugins": {"api": True, "core": True}, "stall_grace_s": 120}
first = rundir.clock() - 60
beat = {"step": 1, "in_flight": 0}
rundir.write(folder, rundir.PLAN, {"expected_acceleration": []})
rundir.write(folder, rundir.PHASE, {**phase, "since": first, "at": first})
rundir.write(folder, rundir.HEARTBEAT, {**beat, "at": first})
with open(folder / "filler", "wb", buffering=0) as filler:
    try:
        while filler.write(b"x" * 4096):
            pass
    except OSError as error:
        print(error.strerror)
assert not judge.report(folder).live_ok, "a minute old"
now = rundir.clock()
rundir.write(folder, rundir.PHASE, {**phase, "since": first, "at": now})
rundir.write(folder, rundir.HEARTBEAT, {**beat, "at": now})
print(judge.report(folder).reason)
rundir.write(folder, rundir.PHASE, {**phase, "phase": "dead", "reason": "r" * 500, "at": now})
print(judge.report(folder).reason == "r" * 500)
for name, size in ((rundir.PHASE, 5000), (rundir.EXIT, 10)):
    try:
        rundir.write(folder, name, {"reason": "r" * size})
    except OSError as error:
        print(name, error.strerror)
print(judge.report(folder).reason == "r" * 500, sorted(one.name for one in folder.iterdir()))
"""


@pytest.fixture(scope="module")
def private_tmpfs() -> list[str]:
    """The words before a shell command that may mount a file system which nobody else sees."""
    for words in (["unshare", "-m"], ["unshare", "-rm"]):
        mounts = [*words, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
        if subprocess.run(mounts, capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip("this machine lets nobody mount a tmpfs, not even in a namespace of its own")


def test_on_a_full_disk_the_probes_go_on_and_a_phase_still_changes(private_tmpfs: list[str], tmp_path: Path) -> None:
    command = 'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        [*private_tmpfs, "sh", "-c", command, "sh", str(tmp_path), sys.executable, textwrap.dedent(ON_A_FULL_DISK)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "No space left on device",
        "idle, no step yet",
        "True",
        "phase.json No space left on device",
        "exit.json No space left on device",
        "True ['filler', 'heartbeat', 'phase.json', 'plan.json']",
    ]


def full(monkeypatch: MonkeyPatch) -> None:
    def replace(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", replace)


def test_a_reader_beside_writing_over_never_takes_a_torn_record_for_a_whole_one(
    monkeypatch: MonkeyPatch, tmp_path: Path
) -> None:
    rundir.write(tmp_path, rundir.PHASE, {"number": 0, "again": 0, "long": "x" * 3000})
    full(monkeypatch)
    seen: list[dict[str, Any] | None] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.append(rundir.read(tmp_path, rundir.PHASE))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(1, 400):
        rundir.write(tmp_path, rundir.PHASE, {"number": number, "again": number, "long": "x" * (number % 3000)})
    done.set()
    reader.join()
    assert seen
    assert all(record is not None and record["number"] == record["again"] for record in seen)


def test_a_shorter_record_leaves_nothing_of_a_longer_one(monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    rundir.write(tmp_path, rundir.PHASE, {"reason": "a long one" * 20})
    full(monkeypatch)
    rundir.write(tmp_path, rundir.PHASE, {"reason": None})
    assert json.loads((tmp_path / rundir.PHASE).read_text()) == {"reason": None}


def test_everyone_may_read_and_nobody_else_may_write_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        rundir.share(tmp_path / "run")
        rundir.write(tmp_path / "run", rundir.PHASE, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "run" / rundir.PHASE).stat().st_mode) == 0o644
