"""The host around the GPUs, read from a root folder that a test lays out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from appliance.topology import host

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(40)))
    put(tmp_path, "proc/meminfo", "MemTotal:       263823360 kB\nMemFree:        1 kB\n")
    put(tmp_path, "proc/self/cgroup", "0::/\n")
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_no_limits(root: Path) -> None:
    put(root, "sys/fs/cgroup/memory.max", "max\n")
    put(root, "sys/fs/cgroup/cpu.max", "max 100000\n")
    found = host.read(root)
    assert (found.cpus, found.memory_bytes, found.cgroup_memory_bytes) == (40, 263823360 * 1024, None)
    status = os.statvfs(root)
    assert found.shm_bytes == status.f_frsize * status.f_blocks


def test_cgroup_v2_limits_of_this_group_and_of_its_parents(root: Path) -> None:
    put(root, "proc/self/cgroup", "0::/machine.slice/app.scope\n")
    put(root, "sys/fs/cgroup/machine.slice/memory.max", f"{64 * GIB}\n")
    put(root, "sys/fs/cgroup/machine.slice/app.scope/memory.max", f"{96 * GIB}\n")
    put(root, "sys/fs/cgroup/machine.slice/app.scope/cpu.max", "350000 100000\n")
    found = host.read(root)
    assert found.cgroup_memory_bytes == 64 * GIB
    assert found.cpus == 4, "three and a half CPUs are four to count workers by"


def test_a_quota_below_one_cpu_is_one(root: Path) -> None:
    put(root, "sys/fs/cgroup/cpu.max", "5000 100000\n")
    assert host.read(root).cpus == 1


def test_cgroup_v1_in_a_container_whose_path_is_the_hosts(root: Path) -> None:
    put(root, "proc/self/cgroup", "9:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n0::/docker/0123\n")
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{48 * GIB}\n")
    assert host.read(root).cgroup_memory_bytes == 48 * GIB


def test_cgroup_v1_without_a_limit(root: Path) -> None:
    put(root, "proc/self/cgroup", "9:memory:/\n")
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert host.read(root).cgroup_memory_bytes is None


def test_what_cannot_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = host.read(tmp_path)
    assert (found.cpus, found.memory_bytes, found.cgroup_memory_bytes, found.shm_bytes) == (2, None, None, None)


@pytest.mark.parametrize("text", ["", "lots\n", "1 0\n", "-1 100000\n", "\x00\xff"])
def test_a_limit_that_makes_no_sense_is_none(root: Path, text: str) -> None:
    put(root, "sys/fs/cgroup/cpu.max", text)
    put(root, "sys/fs/cgroup/memory.max", text)
    found = host.read(root)
    assert (found.cpus, found.cgroup_memory_bytes) == (40, None)
