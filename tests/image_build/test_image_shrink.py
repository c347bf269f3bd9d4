"""Shrinking the libraries of a folder in place."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from appliance.image import elf, fatbin, shrink
from appliance.image.fatbin import CUBIN
from tests.image_build.elf_maker import Part, container, entry, library

BIG = 64 * 1024


def device_code() -> bytes:
    volta = container(entry(CUBIN, 70, BIG, b"\x70"), entry(CUBIN, 90, 4 * BIG, b"\x90"))
    hopper = container(entry(CUBIN, 90, 4 * BIG, b"\x91"))
    return volta + hopper + volta


def the_library() -> bytes:
    return library(Part(".text", b"host code"), Part(".nv_fatbin", device_code()), Part(".rodata", b"constants"))


def listed(data: bytes) -> list[list[tuple[int, int]]]:
    [section] = [each for each in elf.sections(data) if each.name == ".nv_fatbin"]
    found = fatbin.containers(data, section.offset, section.size)
    return [[(each.gpu, each.end - each.start - 64) for each in one.entries] for one in found]


def at_address(data: bytes, address: int, size: int) -> bytes:
    for segment in elf.segments(data):
        if segment.kind == elf.LOAD and segment.address <= address < segment.address + segment.in_file:
            at = segment.offset + address - segment.address
            return data[at : at + size]
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_one_gpus_code_stays_where_its_pointers_look_for_it() -> None:
    data = the_library()
    result = shrink.shrunk(data, 70)
    assert listed(result) == [[(70, BIG)], [(90, 4 * BIG)], [(70, BIG)]]
    [section] = [each for each in elf.sections(data) if each.name == ".nv_fatbin"]
    for one in fatbin.containers(data, section.offset, section.size):
        kept = fatbin.needed(one, 70)
        if kept:
            wanted = fatbin.reduced(data, one, kept)
            assert at_address(result, one.start, len(wanted)) == wanted
    assert len(data) - len(result) > 7 * BIG


def test_code_for_other_gpus_alone_becomes_the_smallest_of_them() -> None:
    data = library(Part(".nv_fatbin", container(entry(CUBIN, 90, 4 * BIG)) + container(entry(CUBIN, 80, 64))))
    assert listed(shrink.shrunk(data, 70)) == [[(80, 64)], [(80, 64)]]


def test_shrinking_twice_changes_nothing_more() -> None:
    once = shrink.shrunk(the_library(), 70)
    assert listed(shrink.shrunk(once, 70)) == listed(once)
    assert len(shrink.shrunk(once, 70)) == len(once)


def test_a_folder_is_shrunk_and_the_package_cache_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached, site = tmp_path / "cache.so", tmp_path / "site"
    site.mkdir()
    cached.write_bytes(the_library())
    cached.chmod(0o755)
    os.link(cached, site / "lib.so.12")
    (site / "link.so").symlink_to("lib.so.12")
    (site / "script.so").write_text("INPUT(lib.so.12)")
    (site / "plain.so").write_bytes(library(Part(".text", bytes(BIG))))
    assert shrink.main([str(site), "--gpu", "70"]) == 0
    assert cached.read_bytes() == the_library()
    assert (site / "lib.so.12").read_bytes() == shrink.shrunk(the_library(), 70)
    assert (site / "lib.so.12").stat().st_mode & 0o777 == 0o755
    assert (site / "link.so").is_symlink()
    assert sorted(path.name for path in site.iterdir()) == ["lib.so.12", "link.so", "plain.so", "script.so"]
    assert capsys.readouterr().out.splitlines()[-1].endswith("in 1 libraries")


def test_unknown_device_code_stops_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.so"
    path.write_bytes(library(Part(".nv_fatbin", b"something else  " * 8)))
    before = path.read_bytes()
    assert shrink.main([str(tmp_path), "--gpu", "70"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("shrink: odd.so: device code at byte 4096 is not in CUDA 12.8's form")
    assert error.count("\n") == 1
    assert path.read_bytes() == before


def test_a_full_disk_stops_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(the_library())

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert shrink.main([str(tmp_path), "--gpu", "70"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert path.read_bytes() == the_library()


@pytest.mark.needs("engine")
@pytest.mark.parametrize("gpu", [70, 0])
def test_a_shrunk_library_of_cuda_loads(tmp_path: Path, gpu: int) -> None:
    spec = importlib.util.find_spec("nvidia.cufile")
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(next(iter(spec.submodule_search_locations))) / "lib" / "libcufile.so.0"
    target = tmp_path / source.name
    shutil.copy(source, target)
    found = shrink.shrink(target, gpu)
    assert found is not None
    assert found.after < found.before
    assert hasattr(ctypes.CDLL(str(target)), "cuFileDriverOpen")
