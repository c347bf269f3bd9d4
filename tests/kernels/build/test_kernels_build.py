"""The ahead-of-time build: whole, incremental, the same bytes again, and one line when it fails."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sm70_kernels.build import ahead, manifest
from sm70_kernels.errors import KernelError
from sm70_kernels.registry import registered, source_hash
from tests.kernels.kernel_sources import SCALE, scale

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sm70_kernels.registry import Specialisation

pytestmark = pytest.mark.needs("engine")


def build(specs: Sequence[Specialisation], out: Path) -> tuple[manifest.Manifest, list[str]]:
    compiled: list[str] = []
    built, count = ahead.build(specs, out, 2, lambda _done, _total, name: compiled.append(name))
    assert count == len(compiled)
    return built, sorted(compiled)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sm70_kernels.build", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_command_builds_everything_registered_without_spills(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path), "--jobs", "2")
    assert done.returncode == 0, done.stderr
    count = len(registered())
    assert f"{count} kernels in {tmp_path}: {count} compiled by NVRTC 12.8.93, 0 kept" in done.stdout
    assert f"built {count}/{count} kernels" in done.stderr
    built = manifest.parse((tmp_path / "manifest.json").read_text())
    assert built.source_hash == source_hash()
    assert set(built.kernels) == {spec.name for spec in registered()}
    for name, entry in built.kernels.items():
        assert entry.spill_stores == entry.spill_loads == entry.local_memory == 0, name
        assert entry.occupancy.blocks >= 1, name
    again = run("--out", str(tmp_path), "--json")
    assert again.stdout == (tmp_path / "manifest.json").read_text()
    assert again.stderr == ""


def test_a_build_is_incremental_and_deterministic(tmp_path: Path) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    specs = [scale(tmp_path, factor) for factor in (2, 3)]
    _, compiled = build(specs, out)
    assert compiled == ["scale-threads64-factor2", "scale-threads64-factor3"]
    first = contents(out)
    assert sorted(first) == ["manifest.json", *(f"{name}.{form}" for name in compiled for form in ("cubin", "ptx"))]
    assert build(specs, out)[1] == []
    assert contents(out) == first
    build(specs, again)
    assert contents(again) == first
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in out.iterdir())


def test_only_what_changed_is_built_and_what_went_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build([scale(tmp_path, 2), scale(tmp_path, 3)], out)
    assert build([scale(tmp_path, 3), scale(tmp_path, 4)], out)[1] == ["scale-threads64-factor4"]
    assert not (out / "scale-threads64-factor2.cubin").exists()
    changed = [scale(tmp_path, factor, text=SCALE.replace("+= 1", "+= 1") + "// changed\n") for factor in (3, 4)]
    assert len(build(changed, out)[1]) == 2


@pytest.mark.parametrize("damage", ["cubin", "ptx", "manifest.json", "gone"])
def test_what_was_damaged_is_built_again(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    spec = scale(tmp_path)
    build([spec], out)
    first = contents(out)
    if damage == "gone":
        (out / f"{spec.name}.cubin").unlink()
    else:
        (out / (damage if "." in damage else f"{spec.name}.{damage}")).write_bytes(b"{}")
    assert build([spec], out)[1] == [spec.name]
    assert contents(out) == first


def test_a_failure_keeps_what_was_built_and_leaves_no_broken_record(tmp_path: Path) -> None:
    out = tmp_path / "out"
    good = scale(tmp_path)
    bad = scale(tmp_path, text=SCALE.replace("FACTOR", "NOTHING"), name="bad")
    with pytest.raises(KernelError, match="bad-threads64-factor2 does not compile"):
        ahead.build([good, bad], out, 1, lambda *_: None)
    assert set(manifest.parse((out / "manifest.json").read_text()).kernels) == {good.name}
    assert build([good], out)[1] == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--out", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr == f"sm70_kernels.build: cannot write {tmp_path / 'file'}: File exists\n"


def test_no_jobs_is_bad_usage(tmp_path: Path) -> None:
    done = run("--out", str(tmp_path), "--jobs", "0")
    assert done.returncode == 2
    assert "--jobs 0: at least 1 is wanted" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting"),
        ("[]", "not a kernel manifest"),
        ('{"schema": 2}', "schema 2, where this version reads 1"),
        ('{"schema": 1, "compiler": "x", "source_hash": "y", "kernels": {"k": {}}}', "not a kernel manifest"),
    ],
)
def test_a_damaged_manifest_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        manifest.parse(text)
