"""Disks that are full, read-only, another user's, or without locks: serving goes on, and the reason is told."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance.cache import durable
from appliance.cache.store import Store, UnusableError
from tests.cache.cachekit import ARTEFACTS, KEY, PARTS, TOKENS, as_user, contents, fill, held, opened, sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """Mount a small tmpfs; skip where this is not allowed, as in most containers."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_up(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
    assert os.statvfs(filler).f_bavail == 0


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let every write beyond `size` bytes of a file fail with EFBIG, as a disk that is full does with ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)


def test_a_seal_on_a_full_disk_is_told_and_the_next_one_works(tmp_path: Path) -> None:
    with held(tmp_path) as lease:
        fill(lease.folder)
        with files_of_at_most(100):
            told = lease.seal(TOKENS)
        assert (told.sealed, told.reason) == (False, "disk_full")
        assert KEY in told.text
        assert not (lease.folder / "stamp.json").exists()
        assert lease.seal(TOKENS).sealed
    assert opened(tmp_path) == ("warm", "verified")


def test_a_seal_of_what_came_later_on_a_full_disk_keeps_the_old_stamp(tmp_path: Path) -> None:
    with sealed(tmp_path).open(KEY, PARTS) as lease:
        fill(lease.folder, {"triton/NEW/late.cubin": b"late"})
        with files_of_at_most(100):
            assert lease.seal().reason == "disk_full"
    with held(tmp_path) as lease:
        assert (lease.state, lease.detail) == ("warm", "4 files are as they were sealed")


def test_what_could_not_be_sealed_can_be_by_hand_when_there_is_room(tmp_path: Path) -> None:
    with held(tmp_path) as lease:
        fill(lease.folder)
        with files_of_at_most(100):
            assert not lease.seal(TOKENS).sealed
    assert Store(tmp_path).seal(KEY).sealed
    assert opened(tmp_path) == ("warm", "verified")


def test_a_cold_start_on_a_full_disk_has_no_cache_and_leaves_no_half_one(tmp_path: Path) -> None:
    with files_of_at_most(100), pytest.raises(UnusableError, match="free space") as refused:
        Store(tmp_path).open(KEY, PARTS)
    assert refused.value.reason == "disk_full"
    assert not Store(tmp_path).generations()[0].in_use
    assert opened(tmp_path) == ("cold", "new")


def test_a_warm_start_on_a_full_disk_is_warm(tmp_path: Path) -> None:
    store = sealed(tmp_path)
    with files_of_at_most(100), store.open(KEY, PARTS) as lease:
        assert (lease.state, lease.tokens, lease.folder) == ("warm", TOKENS, store.folder / KEY)
        assert "full" in lease.detail
    assert opened(tmp_path) == ("warm", "verified")


def test_a_disk_that_really_is_full(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=256k"):
        root = tmp_path / "disk/cache"
        with held(root) as lease:
            fill(lease.folder)
            filler = tmp_path / "disk/filler"
            fill_up(filler)
            assert lease.seal(TOKENS).reason == "disk_full"
            filler.unlink()
            assert lease.seal(TOKENS).sealed
            fill_up(filler)
        with held(root) as lease:
            assert (lease.state, lease.tokens) == ("warm", TOKENS)


def test_a_read_only_volume_with_a_sealed_generation_is_warm_from_a_copy(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with mounted(tmp_path / "disk", "size=1m"):
        store = sealed(tmp_path / "disk/cache")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with store.open(KEY, PARTS, scratch=scratch) as lease:
            assert (lease.state, lease.reason, lease.tokens) == ("warm", "verified_read_only", TOKENS)
            assert lease.folder.parent == scratch
            assert contents(lease.folder) == ARTEFACTS
            assert all((lease.folder / name).is_dir() for name in ("vllm", "inductor", "triton", "cuda", "sm70"))
            fill(lease.folder, {"triton/NEW/late.cubin": b"late"})
            assert lease.seal().sealed
            lease.died()
            with pytest.raises(UnusableError) as refused:
                lease.died()
            assert refused.value.reason == "read_only"
        assert list(scratch.iterdir()) == []
        assert store.generations()[0].state == "sealed"
        assert store.verify(KEY) == []
        assert store.prune(-1, 0) == []
        other = {**PARTS, "plan": "q"}
        from appliance.cache.key import key_of

        with pytest.raises(UnusableError, match="cannot write") as refused:
            store.open(key_of(other), other)
        assert refused.value.reason == "read_only"


def test_an_unfit_generation_on_a_read_only_volume_is_not_loaded(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m"):
        store = sealed(tmp_path / "disk/cache")
        (store.folder / KEY / "sm70/dense-1.zip").write_bytes(b"XX")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(UnusableError) as refused:
            store.open(KEY, PARTS)
        assert refused.value.reason == "read_only"


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user reaches, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="appliance-test-") as name:
        Path(name).chmod(0o755)
        (Path(name) / "scratch").mkdir()
        (Path(name) / "scratch").chmod(0o777)
        yield Path(name)


def readable(root: Path) -> None:
    """Let every user read, as in a volume that another user's container wrote."""
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _foreign_is_warm(root: Path, scratch: Path) -> None:
    with Store(root).open(KEY, PARTS, scratch=scratch) as lease:
        assert (lease.state, lease.reason, lease.tokens) == ("warm", "verified_read_only", TOKENS)
        assert contents(lease.folder) == ARTEFACTS
    assert Store(root).generations()[0].state == "sealed"
    assert Store(root).prune(-1) == []


def _foreign_is_refused(root: Path, reason: str) -> None:
    with pytest.raises(UnusableError) as refused:
        Store(root).open(KEY, PARTS)
    assert refused.value.reason == reason, str(refused.value)


def _foreign_is_put_away(root: Path) -> None:
    with Store(root).open(KEY, PARTS) as lease:
        assert (lease.state, lease.rebuilt) == ("cold", True)
        fill(lease.folder)
        assert lease.seal(TOKENS).sealed


@as_root
def test_a_foreign_users_sealed_generation_is_used_from_a_copy(public: Path) -> None:
    sealed(public / "c")
    readable(public / "c")
    as_user(NOBODY, _foreign_is_warm, public / "c", public / "scratch")
    assert opened(public / "c") == ("warm", "verified")


@as_root
def test_a_foreign_users_unsealed_generation_is_no_cache(public: Path) -> None:
    with held(public / "c") as lease:
        fill(lease.folder)
    readable(public / "c")
    as_user(NOBODY, _foreign_is_refused, public / "c", "read_only")


@as_root
def test_a_foreign_users_closed_generation_is_no_cache(public: Path) -> None:
    sealed(public / "c")
    readable(public / "c")
    (public / "c/generations" / KEY / "triton").chmod(0o700)
    as_user(NOBODY, _foreign_is_refused, public / "c", "read_only")


@as_root
def test_a_foreign_users_unfit_generation_in_a_folder_of_ours_is_put_away(public: Path) -> None:
    sealed(public / "c")
    readable(public / "c")
    (public / "c/generations" / KEY / "triton").chmod(0o700)
    os.chown(public / "c/generations", NOBODY, NOBODY)
    as_user(NOBODY, _foreign_is_put_away, public / "c")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UnusableError, match="flock") as refused:
        Store(tmp_path).open(KEY, PARTS)
    assert refused.value.reason == "no_locks"


def failing(number: int) -> Callable[..., None]:
    def fail(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), str(path))

    return fail


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "disk_full"), (errno.EDQUOT, "disk_full"), (errno.EROFS, "read_only"), (errno.EIO, "failed")],
)
def test_every_way_that_a_stamp_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    with held(tmp_path) as lease:
        fill(lease.folder)
        with monkeypatch.context() as patch:
            patch.setattr(durable, "_write", failing(number))
            told = lease.seal(TOKENS)
        assert (told.sealed, told.reason) == (False, reason)
        assert os.strerror(number) in told.text


def test_a_disk_that_cannot_be_read_makes_the_generation_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed(tmp_path)
    monkeypatch.setattr("appliance.cache.scan.hash_file", failing(errno.EIO))
    with held(tmp_path) as lease:
        assert (lease.state, lease.reason) == ("cold", "file_changed")
        assert "cannot be read" in lease.detail


def test_a_full_scratch_folder_is_told_and_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sealed(tmp_path / "c")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(durable, "_write", failing(errno.EROFS))
        patch.setattr(shutil, "copy", failing(errno.ENOSPC))
        with pytest.raises(UnusableError) as refused:
            store.open(KEY, PARTS, scratch=scratch)
        assert refused.value.reason == "disk_full"
    assert list(scratch.iterdir()) == []
    assert opened(tmp_path / "c") == ("warm", "verified")
