"""SHA-256 of a checkpoint's files: read once, remembered, and never taken on trust when asked to read again."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import CheckError
from appliance.models import verify as module
from appliance.models.progress import LogProgress, SilentProgress
from appliance.models.verify import STAMP, Verification, file_sha256, recorded_hashes, remember, verify, write_source

if TYPE_CHECKING:
    from pathlib import Path

SILENT = SilentProgress()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_bytes(b"{}")
    return folder


PUBLISHED = {"model.safetensors": digest(b"weights")}


def test_files_without_a_published_hash_are_said(folder: Path) -> None:
    found = verify(folder, PUBLISHED, progress=SILENT)
    assert found.read == ("model.safetensors",)
    assert found.unpublished == ("config.json",)
    assert found.summary == (
        "1 of 2 files have the SHA-256 they must have; 1 of 2 files have no published hash: sizes and headers checked"
    )


def test_a_second_start_does_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify(folder, PUBLISHED, progress=SILENT)
    monkeypatch.setattr(module, "file_sha256", pytest.fail)
    found = verify(folder, PUBLISHED, progress=SILENT)
    assert found.remembered == ("model.safetensors",)
    assert "(1 unchanged since they were read)" in found.summary


def test_a_changed_file_is_read_again_and_named(folder: Path) -> None:
    verify(folder, PUBLISHED, progress=SILENT)
    (folder / "model.safetensors").write_bytes(b"altered")
    with pytest.raises(CheckError) as caught:
        verify(folder, PUBLISHED, progress=SILENT)
    assert str(caught.value) == (
        f"model.safetensors in {folder} has SHA-256 {digest(b'altered')[:12]}…, wanted {digest(b'weights')[:12]}…: "
        "it is damaged or another version; remove the folder and run `appliance models fetch`, or copy the file anew"
    )


def test_always_finds_what_the_stamp_hides(folder: Path) -> None:
    weights = folder / "model.safetensors"
    verify(folder, PUBLISHED, progress=SILENT)
    times = weights.stat()
    weights.write_bytes(b"rotting")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert verify(folder, PUBLISHED, progress=SILENT).remembered
    with pytest.raises(CheckError, match=r"model\.safetensors in .* has SHA-256"):
        verify(folder, PUBLISHED, progress=SILENT, always=True)


def test_a_remembered_hash_is_held_against_a_profile_that_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(folder, PUBLISHED, progress=SILENT)
    monkeypatch.setattr(module, "file_sha256", pytest.fail)
    with pytest.raises(CheckError, match="wanted 000000000000…"):
        verify(folder, {"model.safetensors": "0" * 64}, progress=SILENT)


def test_a_file_that_must_be_there(folder: Path) -> None:
    with pytest.raises(CheckError, match=r"more\.safetensors is missing from .*; remove the folder and run"):
        verify(folder, {"more.safetensors": "0" * 64}, progress=SILENT)


def test_a_file_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "file_sha256", broken)
    with pytest.raises(CheckError, match=r"model\.safetensors cannot be read: Input/output error; "):
        verify(folder, PUBLISHED, progress=SILENT)


def test_hashes_recorded_at_the_download_count_too_and_the_profile_wins(folder: Path) -> None:
    write_source(folder, "huggingface", "maker/tiny", "a" * 40, {"config.json": digest(b"{}")})
    assert verify(folder, PUBLISHED, progress=SILENT).unpublished == ()
    record = json.loads((folder / "SOURCE.json").read_text())
    assert record["files"] == {"config.json": {"bytes": 2, "sha256": digest(b"{}")}}
    assert (record["repository"], record["revision"]) == ("maker/tiny", "a" * 40)
    with pytest.raises(CheckError, match=r"config\.json .* wanted 000000000000…"):
        verify(folder, {"config.json": "0" * 64}, progress=SILENT)


def test_a_read_only_folder_is_remembered_under_the_state_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Permissions do not stop root, under which tests may run: a folder in the stamp's place does.
    (folder / STAMP).mkdir()
    state = tmp_path / "state"
    verify(folder, PUBLISHED, progress=SILENT, state_dir=state)
    monkeypatch.setattr(module, "file_sha256", pytest.fail)
    assert verify(folder, PUBLISHED, progress=SILENT, state_dir=state).remembered == ("model.safetensors",)
    assert [path.name for path in folder.iterdir() if path.name.startswith(STAMP + ".")] == []


def test_no_place_for_a_stamp_costs_time_only(folder: Path, tmp_path: Path) -> None:
    (folder / STAMP).mkdir()
    (tmp_path / "state").write_text("a file, not a folder")
    for _ in range(2):
        found = verify(folder, PUBLISHED, progress=SILENT, state_dir=tmp_path / "state")
        assert found.read == ("model.safetensors",)


@given(
    content=st.binary(max_size=200)
    | st.sampled_from([b'{"files": [1]}', b'{"files": {"model.safetensors": 3}}', b"[]"])
)
def test_a_damaged_stamp_or_record_is_worth_nothing(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / STAMP).write_bytes(content)
    (folder / "SOURCE.json").write_bytes(content)
    assert recorded_hashes(folder) == {}
    assert verify(folder, PUBLISHED, progress=SILENT).read == ("model.safetensors",)


def test_what_is_remembered_adds_to_what_was(folder: Path) -> None:
    remember(folder, {"config.json": digest(b"{}")}, None)
    remember(folder, PUBLISHED, None)
    everything = {**PUBLISHED, "config.json": digest(b"{}")}
    assert verify(folder, everything, progress=SILENT).read == ()


def test_progress_names_the_model_and_its_size(folder: Path) -> None:
    lines = list[str]()
    verify(folder, PUBLISHED, progress=LogProgress(lines.append))
    assert lines == ["SHA-256 of model: 0 B of 7 B (0 %)", "SHA-256 of model: done in 0 s"]


@given(content=st.binary(max_size=4096))
def test_hashes_are_the_standard_library_s(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("f") / "file"
    path.write_bytes(content)
    counted = list[int]()
    assert file_sha256(path, counted.append) == digest(content)
    assert sum(counted) == len(content)


def test_a_summary_of_files_that_are_all_proven() -> None:
    assert Verification("f", ("a", "b"), (), ()).summary == "2 of 2 files have the SHA-256 they must have"
