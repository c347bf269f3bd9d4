"""The record of the GPU suite: the committed one is that of the kernels in this tree, with nothing failed in it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.cases import cases as cases_of
from sm70_kernels.proof import record as recording
from sm70_kernels.proof.prove import Outcome, prove
from sm70_kernels.proof.record import COMMITTED, Host, add_sanitizer, complaints, compose
from sm70_kernels.proof.subject import subjects
from sm70_kernels.registry import Kernel, Specialisation, proof_key, registered, source_hash

if TYPE_CHECKING:
    from pathlib import Path

MISSED = registered()[4]
"""What a run missed."""

HOST = Host(gpu="NVIDIA X", capability="9.0", driver="580.1", torch="2.11.0", date="2026-11-29")


@pytest.fixture
def outcome() -> Outcome:
    return prove(subjects()["rms_norm"], cases_of("rms_norm", "selftest")[0], torch.device("cpu"))


def made(outcomes: list[Outcome], **changes: Any) -> dict[str, Any]:
    names = [spec.name for spec in registered() if not spec.kernel.awaits_gpu and spec != MISSED]
    record: dict[str, Any] = json.loads(compose(HOST, outcomes, names, {"rms_norm": True}))
    return record | changes


def test_the_committed_record_vouches_for_this_tree() -> None:
    assert COMMITTED.is_file(), "run `make gpu-test` on a machine with a GPU, and commit verification/gpu.json"
    assert complaints(json.loads(COMMITTED.read_text())) == []


def test_a_good_record_has_no_complaint_and_lists_what_did_not_run(outcome: Outcome) -> None:
    record = made([outcome])
    assert complaints(record) == []
    assert record["unproven"] == sorted([MISSED.name, *(spec.name for spec in registered() if spec.kernel.awaits_gpu)])
    assert record["source_hash"] == source_hash()
    assert record["proven"][registered()[0].name] == proof_key(registered()[0])
    assert record["cases"][0]["shape"] == "rms_norm[hidden=5120,tokens=1]"
    assert record["cases"][0]["error"] < record["cases"][0]["gate"] == 1e-3


def test_a_kernel_of_other_sources_is_not_vouched_for(outcome: Outcome) -> None:
    record = made([outcome])
    changed = registered()[3].name
    record["proven"][changed] = "0" * 64
    (said,) = complaints(record)
    assert said.startswith(f"{changed} ran with the sources 000000000000…, and this tree's are ")
    assert said.endswith("run `make gpu-test` on a machine with a GPU")


def test_another_familys_kernel_takes_no_proof_away(outcome: Outcome) -> None:
    assert complaints(made([outcome], source_hash="0" * 64)) == []


def test_a_kernel_that_awaits_a_gpu_needs_no_proof_and_awaits_no_longer_with_one(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Kernel("new", "norm/rms_norm.cu", "rms_norm", "P", ("THREADS",), awaits_gpu=True)
    spec = Specialisation(new, {"THREADS": 32})
    record = made([outcome])
    monkeypatch.setattr(recording, "registered", lambda: (*registered(), spec))
    assert complaints(record) == []
    record["proven"][spec.name] = proof_key(spec)
    assert complaints(record) == ["new-threads32 is proven, and new still awaits a GPU in its table"]


def test_a_failure_does_not_vouch(outcome: Outcome) -> None:
    bad = dataclasses.replace(outcome, error=float("inf"), case="rms_norm[bad]")
    assert complaints(made([outcome, bad])) == ["rms_norm[bad] failed"]
    assert complaints(made([outcome], graphs={"rms_norm": False})) == ["a replayed graph of rms_norm differs"]


def test_a_kernel_that_came_later_does_not_hide(outcome: Outcome) -> None:
    record = made([outcome])
    gone, _ = record["proven"].popitem()
    assert complaints(record) == [f"{gone} is not in it: run `make gpu-test` on a machine with a GPU"]


def test_the_sanitizers_verdict_is_added(tmp_path: Path, outcome: Outcome) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(made([outcome])))
    add_sanitizer(path, "--report-api-errors no", {"racecheck": "failed: 3 hazards", "memcheck": "clean"})
    record = json.loads(path.read_text())
    assert record["sanitizer"] == {
        "asked": "--report-api-errors no",
        "memcheck": "clean",
        "racecheck": "failed: 3 hazards",
    }
    assert complaints(record) == ["racecheck says failed: 3 hazards"]
    add_sanitizer(path, "", {"memcheck": "clean", "racecheck": "not finished in 150 s"})
    assert complaints(json.loads(path.read_text())) == []


def test_the_record_lies_beside_the_sources() -> None:
    assert recording.COMMITTED.parts[-2:] == ("verification", "gpu.json")
