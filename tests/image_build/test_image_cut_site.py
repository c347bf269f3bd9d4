"""What tests/gpu/engine puts in front of a python's path: metadata of ours, and packages whose libraries may be cut."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.gpu.engine import packages
from tests.gpu.engine.packages import ROOT


def test_what_is_linked_may_be_replaced_without_a_change_of_the_original(tmp_path: Path) -> None:
    original = Path(yaml.__file__)
    before = original.read_bytes()
    for _ in range(2):
        assert packages.linked(tmp_path, ("yaml", "no_such_package")) == ["yaml"]
        copy = tmp_path / "yaml" / "__init__.py"
        assert copy.read_bytes() == before
    new = tmp_path / "new"  # as shrink replaces a library
    new.write_bytes(b"cut")
    new.replace(copy)
    assert original.read_bytes() == before


def test_the_entry_points_are_those_of_an_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    packages.entry_points(tmp_path)
    assert list(tmp_path.iterdir()) == [], "the distribution is installed here"
    monkeypatch.setattr(importlib.metadata, "version", nothing)
    packages.entry_points(tmp_path)
    monkeypatch.undo()
    (written,) = importlib.metadata.distributions(name="v100-appliance", path=[str(tmp_path)])
    installed = importlib.metadata.distribution("v100-appliance")
    told = {(one.group, one.name, one.value) for one in written.entry_points}
    assert told == {
        (one.group, one.name, one.value) for one in installed.entry_points if one.group != "console_scripts"
    }
    assert written.version == installed.version


def test_a_process_tells_where_its_libraries_come_from(tmp_path: Path) -> None:
    assert packages.mapped(os.getpid(), tmp_path)["cut"] == 0
    packages.linked(tmp_path, ("yaml",))
    program = (
        "import os, sys; from pathlib import Path; from tests.gpu.engine import packages; import yaml._yaml; "
        "packages.PACKAGES = ('yaml',); found = packages.mapped(os.getpid(), Path(sys.argv[1])); "
        "assert found == {'cut': 1, 'elsewhere': 0}, found"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "kernels")])
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env={**os.environ, "PYTHONPATH": path}, check=True)


@pytest.mark.engine
def test_this_environment_has_all_that_a_rehearsal_needs() -> None:
    assert packages.missing() == []
