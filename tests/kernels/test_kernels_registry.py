"""What is built: names, hashes, and that the hash follows everything that decides the machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm70_kernels import registry
from sm70_kernels.registry import Kernel, Specialisation, build_key, registered, source_hash, sources_of
from tests.kernels.kernel_sources import SCALE, scale

if TYPE_CHECKING:
    from pathlib import Path


def test_a_specialisation_names_itself_by_its_constants(tmp_path: Path) -> None:
    spec = scale(tmp_path, 3)
    assert spec.name == "scale-threads64-factor3"
    assert Specialisation(spec.kernel, {"FACTOR": 3, "THREADS": 64}, shared_bytes=1024).name.endswith("-shared1024")


def test_equal_specialisations_are_one_key(tmp_path: Path) -> None:
    assert {scale(tmp_path, 3): "loaded"}[scale(tmp_path, 3)] == "loaded"
    assert scale(tmp_path, 3) != scale(tmp_path, 4)


@pytest.mark.parametrize("constants", [{"THREADS": 64}, {"THREADS": 64, "FACTOR": 1, "MORE": 1}])
def test_every_constant_has_a_value(tmp_path: Path, constants: dict[str, int]) -> None:
    with pytest.raises(AssertionError, match="scale wants the constants"):
        Specialisation(scale(tmp_path).kernel, constants)


def test_a_kernel_says_its_threads() -> None:
    with pytest.raises(AssertionError, match="has no THREADS"):
        Kernel("bare", source="bare.cu", entry="bare", params="P", constants=("WIDTH",))


def test_what_is_registered_has_distinct_names_and_sources_that_exist() -> None:
    names = [spec.name for spec in registered()]
    assert len(names) == len(set(names)) > 20
    assert all((registry.CSRC / spec.kernel.source).is_file() for spec in registered())


def test_sources_are_followed_through_includes(tmp_path: Path) -> None:
    (tmp_path / "ptx").mkdir()
    (tmp_path / "ptx/a.cuh").write_text('#pragma once\n#include "ptx/b.cuh"\n')
    (tmp_path / "ptx/b.cuh").write_text('#pragma once\n  #  include "ptx/a.cuh"\n')
    (tmp_path / "k.cu").write_text('#include "ptx/a.cuh"\n// #include "ptx/none.cuh"\n')
    assert sorted(sources_of("k.cu", tmp_path)) == ["k.cu", "ptx/a.cuh", "ptx/b.cuh"]


def test_the_key_follows_source_constants_signature_and_compiler(tmp_path: Path) -> None:
    spec = scale(tmp_path)
    first = build_key(spec, "NVRTC 12.8.93")
    assert build_key(scale(tmp_path), "NVRTC 12.8.93") == first
    others = [
        build_key(scale(tmp_path, 3), "NVRTC 12.8.93"),
        build_key(spec, "NVRTC 12.9.1"),
        build_key(scale(tmp_path, params="PI"), "NVRTC 12.8.93"),
        build_key(scale(tmp_path, text=SCALE + "// another\n"), "NVRTC 12.8.93"),
    ]
    assert len({first, *others}) == 5


def test_the_source_hash_follows_every_file(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("a")
    (tmp_path / "note.md").write_text("a")
    first = source_hash(tmp_path)
    (tmp_path / "note.md").write_text("b")
    assert source_hash(tmp_path) == first
    (tmp_path / "k.cuh").write_text("a")
    second = source_hash(tmp_path)
    (tmp_path / "k.cuh").write_text("b")
    assert len({first, second, source_hash(tmp_path)}) == 3
