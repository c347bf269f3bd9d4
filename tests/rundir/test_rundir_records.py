"""Every record of the run directory: what it writes it reads, and whatever JSON it is given it does not raise."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance import rundir
from appliance.rundir import plugin_proof, rank_report
from appliance.rundir.acceleration import AccelerationReport, RouteReport
from appliance.rundir.cache_start import CacheStart
from appliance.rundir.exit_record import ExitRecord
from appliance.rundir.heartbeat import Heartbeat
from appliance.rundir.phase import Phase, StoppedProcess
from appliance.rundir.plan import PlannedCheckpoint, PlanRecord, SourcedValue
from appliance.rundir.plugin_proof import PluginProof
from appliance.rundir.rank_report import RankReport
from appliance.rundir.record import FileRecord, Record
from appliance.rundir.step_line import StepLine

RECORDS: tuple[type[Record], ...] = (
    AccelerationReport,
    CacheStart,
    ExitRecord,
    Heartbeat,
    Phase,
    PlanRecord,
    PlannedCheckpoint,
    PluginProof,
    RankReport,
    RouteReport,
    SourcedValue,
    StepLine,
    StoppedProcess,
)

INTEGERS = st.integers(-(10**14), 10**14)
NUMBERS = st.floats(-(10.0**14), 10.0**14, allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
PLAIN = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
FIGURES = st.dictionaries(TEXTS, st.dictionaries(TEXTS, INTEGERS, max_size=3), max_size=3)
ROUTES = st.dictionaries(
    TEXTS,
    st.builds(RouteReport, st.none() | TEXTS, st.none() | TEXTS, details=st.dictionaries(TEXTS, PLAIN)),
    max_size=3,
)
SOURCED = st.none() | st.dictionaries(TEXTS, st.builds(SourcedValue, PLAIN, TEXTS), max_size=3)
TUPLE = st.lists(TEXTS, max_size=3).map(tuple)
BY_FIELD: dict[tuple[type[Record], str], st.SearchStrategy[Any]] = {
    (Phase, "models"): TUPLE,
    (Phase, "plugins"): st.dictionaries(TEXTS, st.booleans(), max_size=2),
    (Phase, "stopped"): st.lists(st.builds(StoppedProcess, INTEGERS, TEXTS, NUMBERS), max_size=2).map(tuple),
    (CacheStart, "parts"): st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    (AccelerationReport, "expected_acceleration"): TUPLE,
    (AccelerationReport, "routes"): ROUTES,
    (RankReport, "routes"): ROUTES,
    (RankReport, "kernels"): st.dictionaries(TEXTS, TEXTS, max_size=3),
    (RankReport, "counters"): st.dictionaries(TEXTS, INTEGERS, max_size=3),
    (RankReport, "resident_bytes"): st.dictionaries(TEXTS, INTEGERS, max_size=3),
    (AccelerationReport, "counters"): FIGURES,
    (AccelerationReport, "resident_bytes"): FIGURES,
    (RouteReport, "details"): st.dictionaries(TEXTS, PLAIN, max_size=2),
    (SourcedValue, "value"): PLAIN,
    (SourcedValue, "source"): TEXTS,
    (PlanRecord, "gpus"): st.none() | st.lists(INTEGERS, max_size=3).map(tuple),
    (PlanRecord, "settings"): SOURCED,
    (PlanRecord, "arguments"): SOURCED,
    (PlanRecord, "environment"): SOURCED,
    (PlanRecord, "model"): st.none() | st.builds(PlannedCheckpoint, TEXTS, TEXTS),
    (PlanRecord, "draft"): st.none() | st.builds(PlannedCheckpoint, TEXTS, TEXTS),
    (PlanRecord, "health"): st.none() | st.dictionaries(TEXTS, INTEGERS, max_size=3),
    (PlanRecord, "versions"): st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
}
BY_ANNOTATION = {
    "str | None": st.none() | TEXTS,
    "int | None": st.none() | INTEGERS,
    "float | None": st.none() | NUMBERS,
    "bool | None": st.none() | st.booleans(),
    "tuple[str, ...] | None": st.none() | TUPLE,
    "dict[str, Any] | None": st.none() | st.dictionaries(TEXTS, PLAIN, max_size=2),
}


def whole(record: type[Any]) -> st.SearchStrategy[Record]:
    """Records with every field drawn."""
    drawn = {
        field.name: BY_FIELD[record, field.name] if (record, field.name) in BY_FIELD else BY_ANNOTATION[str(field.type)]
        for field in fields(record)
    }
    return st.builds(record, **drawn)


def names_in_the_file(record: type[Any]) -> list[str]:
    """The keys that `record` can write."""
    return sorted({"step" if field.name == "step_count" else field.name for field in fields(record)})


@pytest.mark.parametrize("record", RECORDS)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_written_is_read(record: type[Record], data: st.DataObject) -> None:
    written = data.draw(whole(record))
    assert record.from_json(json.loads(json.dumps(written.to_json()))) == written


@pytest.mark.parametrize("record", RECORDS)
@settings(deadline=None)
@given(value=JSON)
def test_no_json_raises(record: type[Record], value: object) -> None:
    assert record.from_json(value) == record.from_json(record.from_json(value).to_json())


@pytest.mark.parametrize("record", RECORDS)
@settings(deadline=None)
@given(data=st.data())
def test_fields_of_any_type_do_not_raise(record: type[Record], data: st.DataObject) -> None:
    value = data.draw(st.dictionaries(st.sampled_from(names_in_the_file(record)), JSON, max_size=4))
    assert isinstance(record.from_json(value), record)


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("value", [None, [], 1, "x", {}, {"a later field": 1}])
def test_what_is_missing_has_its_default_and_what_is_unknown_is_ignored(record: type[Record], value: object) -> None:
    assert record.from_json(value) == record()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "true", '"1"', "[1]", str(10**400)])
def test_a_number_is_finite_and_no_boolean(number: str) -> None:
    beat = Heartbeat.from_json(json.loads(f'{{"at": {number}, "step": {number}}}'))
    assert (beat.at, beat.step_count) == (None, None)


def test_half_a_surrogate_pair_can_be_written_again(tmp_path: Path) -> None:
    ExitRecord.from_json(json.loads('{"reason": "\\ud800"}')).write(tmp_path)
    assert ExitRecord.read(tmp_path) == ExitRecord(reason="?")


def test_the_step_count_has_its_published_key_in_both_files() -> None:
    assert Heartbeat(step_count=7).to_json()["step"] == 7
    assert StepLine(t=1.5, step_count=7).to_json() == {"t": 1.5, "step": 7}


def test_the_table_names_the_dataclass_of_every_file() -> None:
    for entry in rundir.TABLE:
        module, name = entry.record.split(".")
        record = getattr(importlib.import_module(f"appliance.rundir.{module}"), name)
        assert record in RECORDS
        if issubclass(record, FileRecord):
            assert entry.name == record.FILE
    files = {record.FILE for record in RECORDS if issubclass(record, FileRecord)}
    assert files < {entry.name for entry in rundir.TABLE}


def test_a_new_start_clears_every_file_of_the_table(tmp_path: Path) -> None:
    for entry in rundir.TABLE:
        if entry.folder:
            (tmp_path / entry.name).mkdir()
        (tmp_path / entry.name / "7.json" if entry.folder else tmp_path / entry.name).write_text("{}")
    (tmp_path / "supervisord.conf").touch()
    rundir.clear(tmp_path)
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} == {"supervisord.conf"}


def test_a_record_is_read_from_its_file_or_is_none(tmp_path: Path) -> None:
    assert Phase.read(tmp_path) is None
    Phase(phase="ready", models=("smol",)).write(tmp_path)
    assert Phase.read(tmp_path) == Phase(phase="ready", models=("smol",))
    for content in (b"", b"[1]", b"{", b"\xff"):
        (tmp_path / rundir.PHASE).write_bytes(content)
        assert Phase.read(tmp_path) is None


def test_ranks_are_files_named_by_a_number(tmp_path: Path) -> None:
    (tmp_path / rundir.RANKS).mkdir()
    for name, content in (("0", '{"pid": 5}'), ("1", "{"), ("one", "{}"), ("2", "[]")):
        (tmp_path / rundir.RANKS / f"{name}.json").write_text(content)
    assert rank_report.read_all(tmp_path) == {0: RankReport(pid=5)}


def test_a_proof_is_found_by_its_role(tmp_path: Path) -> None:
    PluginProof(pid=7, role="core", vllm="0.19.1").write(tmp_path)
    assert plugin_proof.of_role(tmp_path, "core").vllm == "0.19.1"
    assert plugin_proof.of_role(tmp_path, "api") == PluginProof()


def test_it_imports_the_standard_library_and_nothing_else_of_the_appliance() -> None:
    modules = sorted(f"appliance.rundir.{file.stem}" for file in Path(rundir.__file__).parent.glob("[a-z]*.py"))
    program = (
        f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
        "theirs = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'}\n"
        "ours = [name for name in sys.modules if name.startswith('appliance')]\n"
        "print(theirs, [name for name in ours if not name.startswith(('appliance.rundir', 'appliance.rundir.'))])"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split(maxsplit=1) == ["{'appliance'}", "['appliance']\n"]


ROOT = Path(rundir.__file__).parents[2]
