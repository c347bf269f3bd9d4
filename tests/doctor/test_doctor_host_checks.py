"""Shared memory, memory, C library, clock, folders, space, ports and model files."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from pathlib import Path

import pytest

from appliance.doctor.checks import host, models, ports, storage
from appliance.launch.plan import PlannedModel
from appliance.topology.machine import Host

GIB = 2**30


def test_shared_memory_of_docker_s_default_size() -> None:
    check = host.shm(64 << 20, 64 << 20, GIB)
    assert check.line == (
        "/dev/shm: 64 MiB of 64 MiB free; wanted 1.0 GiB free; start the container with --shm-size 1g or --ipc host"
    )


def test_shared_memory_that_others_filled() -> None:
    check = host.shm(2 * GIB, GIB // 2, GIB)
    assert check.status == "fail"
    assert check.todo.startswith("remove what other programs left in /dev/shm, or start the container with")


def test_shared_memory_that_suffices_or_is_not_needed() -> None:
    assert host.shm(2 * GIB, 2 * GIB, GIB).status == "ok"
    assert host.shm(None, None, 0).status == "skipped"
    assert (
        host.shm(None, None, GIB).line == "/dev/shm: it is not mounted; wanted 1.0 GiB free; mount a tmpfs on /dev/shm"
    )


def test_shared_memory_here() -> None:
    size, free = host.read_shm()
    assert size is None or (free is not None and size >= free >= 0)


def test_memory_under_a_limit() -> None:
    limited = Host(memory_bytes=64 * GIB, cgroup_memory_bytes=2 * GIB)
    assert host.memory(limited, 4 * GIB).line == (
        "host memory: 2.0 GiB (the limit of the cgroup); wanted at least 4.0 GiB; raise the container's memory limit"
    )
    assert host.memory(limited, GIB).status == "ok"


def test_memory_without_a_limit() -> None:
    assert host.memory(Host(memory_bytes=2 * GIB), 4 * GIB).todo == "use a machine with more memory, or another profile"
    assert host.memory(Host(memory_bytes=64 * GIB), 4 * GIB).found == "64.0 GiB"
    assert host.memory(Host(), 4 * GIB).status == "skipped"


TAGS = ["Tag: cp38-abi3-manylinux_2_31_x86_64", "Tag: cp311-cp311-manylinux_2_28_x86_64", "Tag: py3-none-any"]


@pytest.mark.parametrize(("version", "status"), [("glibc 2.36", "ok"), ("glibc 2.31", "ok"), ("glibc 2.28", "fail")])
def test_glibc_against_the_wheels(version: str, status: str) -> None:
    check = host.glibc(version, TAGS)
    assert (check.status, check.wanted) == (status, "glibc 2.31 or newer")
    assert (check.todo == "use the container image, or a newer distribution") == (status == "fail")


def test_another_c_library() -> None:
    assert host.glibc(None, TAGS).line == (
        "C library: no glibc; wanted glibc 2.31 or newer; run on a distribution with glibc (no musl)"
    )
    assert host.glibc("glibc 2.36", []).wanted == "any glibc"


def test_the_c_library_here_runs_what_is_installed() -> None:
    assert host.glibc(host.glibc_version(), host.wheel_tags()).status == "ok"
    assert host.wheel_tags(["no-such-package"]) == []


def test_clocks() -> None:
    assert host.clock("tsc", boottime=True).status == "ok"
    slow = host.clock("hpet", boottime=True)
    assert (slow.status, slow.found) == ("warn", "clock source hpet")
    assert "dmesg" in slow.todo
    assert host.clock(None, boottime=False).found == "CLOCK_BOOTTIME does not answer"
    assert host.clock(host.clock_source(), boottime=host.has_boottime()).status in ("ok", "warn")


def test_a_folder_is_made_and_written_and_left_clean(tmp_path: Path) -> None:
    path = tmp_path / "a/b"
    assert storage.write_trouble(path) is None
    assert list(path.iterdir()) == []
    assert storage.folder("state", path, None).status == "ok"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trouble = storage.write_trouble(tmp_path / "file/state")
    assert storage.folder("state", tmp_path / "file/state", trouble).line == (
        f"state folder: {tmp_path}/file/state cannot be written (Not a directory); wanted a folder that this user can "
        f"write; make it writable for user {os.getuid()}, or name another folder with APPLIANCE_STATE_DIR"
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (
            errno.EROFS,
            "(Read-only file system); wanted a folder that this user can write; make it writable for user ",
        ),
        (errno.EACCES, "(Permission denied)"),
        (
            errno.ENOSPC,
            "(No space left on device); wanted a folder that this user can write; free space there, or name a",
        ),
    ],
)
def test_folders_that_are_read_only_forbidden_or_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    # Permissions do not stop root, under which tests may run.
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    check = storage.folder("models", tmp_path, storage.write_trouble(tmp_path))
    assert words in check.line
    assert "APPLIANCE_MODELS_DIR" in check.todo


def test_space(tmp_path: Path) -> None:
    assert storage.space(tmp_path, 50 * GIB, 40 * GIB).status == "ok"
    assert storage.space(tmp_path, 12 * GIB, 40 * GIB).line == (
        f"disk space: 12.0 GiB free in {tmp_path}; wanted 40.0 GiB for the model and its caches; "
        "free space there, or name a folder on a larger volume with APPLIANCE_MODELS_DIR"
    )
    assert storage.space(tmp_path, None, 40 * GIB).status == "skipped"
    assert storage.free_bytes(tmp_path / "not/there/yet") is not None


def test_a_port_in_use_names_its_holder() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        check = ports.port(
            "engine", "127.0.0.1", number, ports.listen_trouble("127.0.0.1", number), ports.holder_of(number)
        )
    assert check.status == "fail"
    assert check.found.startswith(f"127.0.0.1 port {number} is in use by process {os.getpid()} (")
    assert check.todo == "stop that, or choose another port with --port or APPLIANCE_PORT"


def test_a_free_port() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    assert ports.listen_trouble("127.0.0.1", number) is None
    assert ports.holder_of(number) is None
    assert ports.port("sidecar", "127.0.0.1", number, None, None).status == "ok"


@pytest.mark.parametrize(
    ("trouble", "found", "todo"),
    [
        (
            OSError(errno.EADDRINUSE, "x"),
            "0.0.0.0 port 80 is in use by a process of another user",
            "stop that, or choose another port with --sidecar-port or APPLIANCE_SIDECAR_PORT",
        ),
        (
            OSError(errno.EACCES, "x"),
            "this user may not listen on port 80",
            "choose a port from 1024 up with --sidecar-port or APPLIANCE_SIDECAR_PORT",
        ),
        (
            OSError(errno.EADDRNOTAVAIL, "x"),
            "0.0.0.0 is no address of this machine",
            "set the address to 127.0.0.1, or to 0.0.0.0 for every interface",
        ),
        (
            OSError(errno.EIO, "broken"),
            "listening on 0.0.0.0 port 80 fails (broken)",
            "choose another port with --sidecar-port or APPLIANCE_SIDECAR_PORT",
        ),
    ],
)
def test_ports_that_cannot_be_had(trouble: OSError, found: str, todo: str) -> None:
    check = ports.port("sidecar", "0.0.0.0", 80, trouble, None)
    assert (check.id, check.status, check.found, check.todo) == ("sidecar_port", "fail", found, todo)


def test_an_address_that_is_another_machine_s() -> None:
    # 192.0.2.0/24 is kept for documentation (RFC 5737), so no machine has it.
    trouble = ports.listen_trouble("192.0.2.1", 8000)
    assert ports.port("engine", "192.0.2.1", 8000, trouble, None).found == "192.0.2.1 is no address of this machine"
    assert ports.port("engine", "h", 8000, socket.gaierror(-2, "x"), None).found == "h is no address of this machine"


def planned(
    folder: Path, origin: str = "folder", kind: str = "unquantized", revision: str | None = "a" * 40
) -> PlannedModel:
    return PlannedModel(origin, str(folder), "maker/tiny", revision, kind, {}, "profile p")


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return folder


def test_a_whole_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    for origin in ("folder", "download", "package"):
        assert models.model("model", planned(folder, origin), offline=True).status == "ok"


def test_a_checkpoint_of_another_kind(tmp_path: Path) -> None:
    check = models.model("draft", planned(checkpoint(tmp_path / "m"), kind="nvfp4"), offline=False)
    assert (check.status, check.id, check.found) == ("fail", "draft", f"{tmp_path}/m is unquantized")


def test_a_checkpoint_that_is_cut_short(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    check = models.model("model", planned(folder, "download"), offline=False)
    assert check.status == "fail"
    assert "model.safetensors" in check.found
    assert check.todo == "download it again"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    check = models.model("model", planned(tmp_path / "no"), offline=False)
    assert check.line == (
        f"model: {tmp_path}/no: does not exist; wanted the folder of a checkpoint, with its config.json; "
        "download it again, or name another folder"
    )


def test_what_a_start_would_bring_is_no_failure_unless_offline(tmp_path: Path) -> None:
    folder = tmp_path / "no"
    fetched = models.model("model", planned(folder, "download"), offline=False)
    assert (fetched.status, "is downloaded into" in fetched.found) == ("ok", True)
    assert models.model("model", planned(folder, "package"), offline=True).status == "ok"
    check = models.model("model", planned(folder, "download"), offline=True)
    assert (check.status, check.found) == (
        "fail",
        "maker/tiny at aaaaaaaaaaaa is not here, and offline was asked for",
    )
