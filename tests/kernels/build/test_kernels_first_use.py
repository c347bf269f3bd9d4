"""Compilation on first use, and the choice between the prebuilt folder and the cache."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from sm70_kernels.build import ahead, first_use, store
from sm70_kernels.build.compiler import compile_specialisation
from sm70_kernels.errors import KernelError
from tests.kernels.kernel_sources import SCALE, scale

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sm70_kernels.build.compiler import Compiled
    from sm70_kernels.registry import Specialisation

pytestmark = pytest.mark.needs("engine")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SM70_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SM70_KERNELS_DIR", str(tmp_path / "built"))
    store.prebuilt.cache_clear()
    return tmp_path / "cache"


def count_compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    compiled: list[str] = []

    def counted(spec: Specialisation) -> Compiled:
        compiled.append(spec.name)
        return compile_specialisation(spec)

    monkeypatch.setattr(first_use, "compile_specialisation", counted)
    return compiled


def test_the_second_use_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    compiled = count_compilations(monkeypatch)
    spec = scale(tmp_path)
    first = [store.load(spec, form) for form in ("cubin", "ptx", "cubin")]
    assert first[0] == first[2] == compile_specialisation(spec).cubin
    assert first[1] == compile_specialisation(spec).ptx
    assert compiled == [spec.name]
    assert len(list(cache.iterdir())) == 1


def test_another_source_is_another_file(tmp_path: Path, cache: Path) -> None:
    store.load(scale(tmp_path), "cubin")
    store.load(scale(tmp_path, text=SCALE + "// changed\n"), "cubin")
    assert len(list(cache.iterdir())) == 2


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def lie(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        record = archive.read("manifest.json")
        names = [name for name in archive.namelist() if name != "manifest.json"]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", record)
        for name in names:
            archive.writestr(name, b"something else")


@pytest.mark.parametrize(
    "damage",
    [cut_short, lie, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"not a zip file at all" * 99)],
    ids=["cut short", "other content", "empty", "noise"],
)
def test_a_bad_file_is_rebuilt_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], object],
) -> None:
    compiled = count_compilations(monkeypatch)
    spec = scale(tmp_path)
    good = store.load(spec, "cubin")
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    damage(path)
    with caplog.at_level(logging.WARNING):
        assert store.load(spec, "cubin") == store.load(spec, "cubin") == good
    assert len(compiled) == 2
    assert f"{path} is damaged" in caplog.text
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("a file where the folder should be")
    spec = scale(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert store.load(spec, "cubin") == compile_specialisation(spec).cubin
    assert "set SM70_KERNELS_CACHE" in caplog.text


def test_the_cache_is_below_the_users_cache_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SM70_KERNELS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert first_use.cache_folder() == tmp_path / "sm70_kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert first_use.cache_folder() == tmp_path / ".cache/sm70_kernels"


USE = """
import hashlib, sys
from pathlib import Path
from tests.kernels.kernel_sources import scale
from sm70_kernels.build import store
sys.stdin.readline()
print(hashlib.sha256(store.load(scale(Path(sys.argv[1])), "cubin")).hexdigest())
"""


def test_four_processes_at_once_get_the_same_bytes(tmp_path: Path, cache: Path, pytestconfig: pytest.Config) -> None:
    scale(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(pytestconfig.rootpath)}
    users = [
        subprocess.Popen(
            [sys.executable, "-c", USE, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for _ in range(4)
    ]
    for user in users:
        # They all wait for a line, so that they start together once all are loaded.
        assert user.stdin is not None
        user.stdin.write("go\n")
        user.stdin.flush()
    said = {user.communicate()[0] for user in users}
    assert [user.returncode for user in users] == [0] * 4
    assert len(said) == 1
    assert len(list(cache.iterdir())) == 1, "no temporary file is left"


def test_a_prebuilt_kernel_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    spec = scale(tmp_path)
    ahead.build([spec], tmp_path / "built", 1, lambda *_: None)
    compiled = count_compilations(monkeypatch)
    assert store.load(spec, "ptx") == (tmp_path / "built" / f"{spec.name}.ptx").read_bytes()
    assert not compiled
    assert not cache.exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), r"cannot be read \(No such file or directory\); .*`make kernels`"),
        (lambda path: path.write_bytes(b"x"), r"has SHA-256 2d711642b726…, not [0-9a-f]{12}… as its manifest says"),
    ],
    ids=["missing", "wrong hash"],
)
def test_a_damaged_prebuilt_kernel_is_refused(
    tmp_path: Path, cache: Path, damage: Callable[[Path], object], says: str
) -> None:
    spec = scale(tmp_path)
    ahead.build([spec], tmp_path / "built", 1, lambda *_: None)
    damage(tmp_path / "built" / f"{spec.name}.cubin")
    with pytest.raises(KernelError, match=says) as caught:
        store.load(spec, "cubin")
    assert caught.value.reason == "operator_missing:scale"
    assert not cache.exists(), "it must not be replaced behind the operator's back"


def test_a_damaged_manifest_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "built").mkdir()
    (tmp_path / "built/manifest.json").write_text("{")
    with pytest.raises(KernelError, match=r"manifest.json is damaged \(Expecting"):
        store.load(scale(tmp_path), "cubin")


def test_a_kernel_of_other_sources_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    ahead.build([scale(tmp_path)], tmp_path / "built", 1, lambda *_: None)
    compiled = count_compilations(monkeypatch)
    store.load(scale(tmp_path, text=SCALE + "// changed\n"), "cubin")
    assert compiled == ["scale-threads64-factor2"]


@pytest.mark.parametrize(("built", "says"), [(True, "was built from other sources"), (False, "is not there")])
def test_without_a_compiler_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, built: bool, says: str
) -> None:
    def no_compiler() -> None:
        raise KernelError("compiler_missing", "this machine's NVRTC cannot compile for SM70")

    if built:
        ahead.build([scale(tmp_path)], tmp_path / "built", 1, lambda *_: None)
    monkeypatch.setattr(first_use, "compiler_version", no_compiler)
    with pytest.raises(KernelError, match=rf"{says} in .*cannot compile for SM70; `make kernels` builds it") as caught:
        store.load(scale(tmp_path, text=SCALE + "// changed\n"), "cubin")
    assert caught.value.reason == "operator_missing:scale"
