"""The stamp and the record of use as text, the decision as a table, the hashes, the locks."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.cache import durable, locks, scan
from appliance.cache.decide import DEATHS, Decision, Found, Start, decide
from appliance.cache.records import Problem
from appliance.cache.scan import Entry, Scan, is_artefact
from appliance.cache.stamp import Stamp, Stamped, StampError, Use, _digest, parse, parse_use
from tests.cache.cachekit import ARTEFACTS, fill

if TYPE_CHECKING:
    from pathlib import Path

# A name on a disk is bytes: what is no UTF-8 becomes surrogates.
NAMES = st.binary(min_size=1, max_size=20).map(os.fsdecode).filter(lambda name: "\0" not in name)
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
TIMES = st.floats(0, 2**33)
STAMPS = st.builds(
    Stamp,
    key=st.text(),
    parts=st.dictionaries(st.text(), st.text()),
    folder=NAMES,
    files=st.dictionaries(NAMES, st.builds(Stamped, st.integers(0, 2**60), HASHES), max_size=4),
    created_at=TIMES,
    sealed_at=TIMES,
    tokens=st.none() | st.lists(st.integers(0, 2**20)).map(tuple),
)
USES = st.builds(
    Use,
    key=st.text(),
    boot=st.text(),
    pid=st.integers(0, 2**22),
    created_at=TIMES,
    used_at=TIMES,
    pending=st.booleans(),
    deaths=st.integers(0, 9),
    drops=st.integers(0, 9),
    ready=st.booleans(),
    parts=st.dictionaries(st.text(), st.text()),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(STAMPS)
def test_a_stamp_is_read_as_it_was_written(stamp: Stamp) -> None:
    assert parse(stamp.dump()) == stamp


@given(STAMPS, st.data())
def test_a_stamp_that_was_cut_off_is_none(stamp: Stamp, data: Any) -> None:
    written = stamp.dump()
    with pytest.raises(StampError):
        parse(written[: data.draw(st.integers(0, len(written) - 3))])


@given(STAMPS, st.data())
def test_a_stamp_with_any_value_changed_is_none(stamp: Stamp, data: Any) -> None:
    record = json.loads(stamp.dump())
    name = data.draw(st.sampled_from(sorted(record)))
    other = data.draw(JSON.filter(lambda value: value != record[name]))
    with pytest.raises(StampError):
        parse(json.dumps({**record, name: other}).encode())


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_record_is_told_and_never_raises_anything_else(data: bytes) -> None:
    with pytest.raises(StampError):
        parse(data)
    assert parse_use(data) is None


@given(USES)
def test_a_record_of_use_is_read_as_it_was_written(use: Use) -> None:
    assert parse_use(use.dump()) == use


@given(USES, st.data())
def test_a_record_of_use_of_another_form_is_none(use: Use, data: Any) -> None:
    record = json.loads(use.dump())
    name = data.draw(st.sampled_from(sorted(set(record) - {"schema"})))
    kept = {key: value for key, value in record.items() if key != name}
    assert parse_use(json.dumps(kept).encode()) is None
    assert parse_use(json.dumps({**kept, name: [None]}).encode()) is None


@pytest.mark.parametrize("time", [float("inf"), float("nan"), 10**400, True])
@pytest.mark.parametrize("name", ["created_at", "used_at"])
def test_a_record_of_use_with_a_time_that_is_none_is_none(name: str, time: float) -> None:
    use = json.loads(Use("k", "b", 1, 1.0, 1.0).dump())
    assert parse_use(json.dumps({**use, name: time}).encode()) is None


def test_a_stamp_with_a_time_that_is_none_is_none() -> None:
    record = json.loads(STAMP.dump())
    record |= {"created_at": float("inf")}
    del record["sha256"]
    with pytest.raises(StampError, match="lacks what a stamp has"):
        parse(json.dumps({**record, "sha256": _digest(record)}).encode())


def test_what_cannot_be_printed_is_told_in_one_line() -> None:
    problem = Problem(os.fsdecode(b"triton/\xff\n"), "is\x1b[1m missing")
    assert str(problem) == r"triton/\udcff\n is\x1b[1m missing"
    assert str(Problem("triton/ä x", "…")) == "triton/ä x …"


PARTS = {"image": "i"}
START = Start(key="k", parts=PARTS, folder="/c/k", boot="now")
A, B = Entry(1, 1, 1), Entry(2, 2, 2)
STAMP = Stamp("k", PARTS, "/c/k", {"vllm/a": Stamped(1, "h")}, 1.0, 2.0, (1,))
USE = Use("k", "now", 1, 1.0, 2.0, pending=False)
BEFORE = replace(USE, boot="before")
FULL = Scan(
    files={"vllm/a": A, "triton/b": B}, volatile={"cuda/c": A}, passing={"x.lock": A}, secret={"s": A}, odd=["odd"]
)
BAD = Problem("vllm/a", "is missing")
CLEAN = Scan(files={"vllm/a": A})


@pytest.mark.parametrize(
    ("found", "state", "reason", "purge"),
    [
        (Found(None), "cold", "new", False),
        (Found(Scan()), "cold", "new", False),
        (Found(Scan(), use=replace(USE, deaths=9)), "cold", "new", False),
        (Found(CLEAN, STAMP, use=USE), "warm", "verified", False),
        (Found(CLEAN, STAMP, use=BEFORE), "warm", "verified", False),
        (Found(CLEAN, STAMP), "warm", "verified", False),
        (Found(CLEAN, STAMP, use=USE, alone=False), "warm", "verified", False),
        (Found(CLEAN, STAMP, use=USE, bad=BAD), "cold", "file_changed", True),
        (Found(CLEAN, stamp_problem="is not JSON", use=USE), "cold", "stamp_damaged", True),
        (Found(CLEAN, replace(STAMP, key="other"), use=USE), "cold", "stamp_damaged", True),
        (Found(CLEAN, replace(STAMP, parts={}), use=USE), "cold", "stamp_damaged", True),
        (Found(CLEAN, replace(STAMP, folder="/d/k"), use=USE), "cold", "moved", True),
        (Found(CLEAN, STAMP, use=replace(USE, deaths=DEATHS)), "cold", "died_twice", True),
        (Found(CLEAN, STAMP, use=replace(USE, deaths=1, pending=True)), "cold", "died_twice", True),
        (Found(CLEAN, STAMP, use=replace(BEFORE, deaths=1, pending=True)), "warm", "verified", False),
        (Found(CLEAN, STAMP, use=replace(USE, deaths=9), alone=False), "warm", "verified", False),
        (Found(CLEAN, use=USE), "resumed", "interrupted", False),
        (Found(CLEAN, use=replace(USE, pending=True)), "resumed", "interrupted", False),
        (Found(CLEAN, use=replace(USE, pending=True, deaths=1)), "cold", "died_twice", True),
        (Found(CLEAN, use=BEFORE), "cold", "power_lost", True),
        (Found(CLEAN), "cold", "power_lost", True),
        (Found(CLEAN, use=BEFORE, alone=False), "resumed", "shared", False),
        (Found(FULL, use=USE), "cold", "odd_file", True),
    ],
)
def test_the_decision(found: Found, state: str, reason: str, purge: bool) -> None:
    decision = decide(found, START)
    assert (decision.state, decision.reason, decision.purge) == (state, reason, purge)
    assert "\n" not in decision.detail


@pytest.mark.parametrize(
    ("found", "delete"),
    [
        (Found(FULL, STAMP, use=USE), {"x.lock", "s", "odd"}),
        (Found(FULL, STAMP, use=BEFORE), {"x.lock", "s", "odd", "cuda/c", "triton/b"}),
        (Found(FULL, STAMP, use=BEFORE, alone=False), {"s", "odd"}),
        (Found(replace(FULL, odd=[]), use=USE), {"x.lock", "s"}),
    ],
)
def test_what_goes_from_a_generation_that_is_used(found: Found, delete: set[str]) -> None:
    assert set(decide(found, START).delete) == delete


@given(
    st.builds(
        Found,
        scan=st.none() | st.sampled_from([Scan(), CLEAN, FULL]),
        stamp=st.none() | st.sampled_from([STAMP, replace(STAMP, key="x"), replace(STAMP, folder="/x")]),
        stamp_problem=st.none() | st.just("is not JSON"),
        use=st.none() | USES | st.sampled_from([USE, BEFORE]),
        bad=st.none() | st.just(BAD),
        alone=st.booleans(),
    ),
    st.sampled_from(["now", ""]),
)
def test_nothing_that_is_not_as_it_was_sealed_is_ever_warm(found: Found, boot: str) -> None:
    decision: Decision = decide(found, replace(START, boot=boot))
    if decision.state == "warm":
        assert found.scan is not None
        assert found.stamp == STAMP
        assert found.bad is None
        assert found.stamp_problem is None
        beyond = set(found.scan.files) - set(STAMP.files) - set(decision.delete)
        assert not beyond or not found.alone or (found.use is not None and found.use.boot == boot != "")
        assert set(found.scan.odd) <= set(decision.delete)
    if decision.state == "resumed":
        assert not decision.purge
        assert not found.alone or (found.use is not None and found.use.boot == boot != "")


def test_hashes_are_those_of_the_bytes_and_what_is_unreadable_is_a_problem(tmp_path: Path) -> None:
    fill(tmp_path)
    found = scan.scan(tmp_path)
    stamped = {name: Stamped(len(data), hashlib.sha256(data).hexdigest()) for name, data in ARTEFACTS.items()}
    assert {name: stamp for name, (stamp, _) in scan.hash_files(tmp_path, list(found.files)).items()} == stamped
    assert list(scan.check(tmp_path, stamped, found.files)) == []
    (tmp_path / "sm70/dense-1.zip").unlink()
    assert [one.file for one in scan.check(tmp_path, stamped, found.files)] == ["sm70/dense-1.zip"]
    assert "sm70/dense-1.zip" not in scan.hash_files(tmp_path, list(found.files))


def test_names_that_are_no_text_are_files_like_others(tmp_path: Path) -> None:
    name = os.fsdecode(b"inductor/\xff\xfe name\n")
    fill(tmp_path, {name: b"x"})
    found = scan.scan(tmp_path)
    assert set(found.files) == {name}
    hashed = {key: stamped for key, (stamped, _) in scan.hash_files(tmp_path, [name]).items()}
    stamp = replace(STAMP, files=hashed)
    assert list(scan.check(tmp_path, parse(stamp.dump()).files, found.files)) == []


@pytest.mark.parametrize("name", ["vllm/a", "triton/x/y.cubin", "sm70/dense.zip", "inductor/..a/b"])
def test_artefacts(name: str) -> None:
    assert is_artefact(name, 1)


def test_a_lock_that_holds_bytes_is_a_file_like_others() -> None:
    assert not is_artefact("inductor/a.lock", 0)
    assert is_artefact("inductor/a.lock", 1)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stamp.json"
    durable.write_whole(path, b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        durable.write_whole(path, b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("stamp.json", b"old")]


def test_the_kernels_boot_id_is_the_same_twice_and_nothing_where_there_is_none() -> None:
    assert durable.boot_id() == durable.boot_id() != ""


def test_alone_is_told_by_every_holder_alike(tmp_path: Path) -> None:
    with locks.gate(tmp_path, "k") as held:
        assert held
        first = locks.use(tmp_path, "k")
        assert first.alone()
        second = locks.use(tmp_path, "k")
        assert not first.alone()
        assert not second.alone()
        second.release()
        assert first.alone()
        with locks.gate(tmp_path, "k", 0.1) as again:
            assert not again
    assert locks.in_use(tmp_path, "k")
    first.release()
    first.release()
    assert not locks.in_use(tmp_path, "k")


def test_looking_makes_no_lock_files(tmp_path: Path) -> None:
    assert not locks.in_use(tmp_path, "k")
    assert list(tmp_path.iterdir()) == []
