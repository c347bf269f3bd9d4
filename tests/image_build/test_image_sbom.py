"""The bill of materials: valid CycloneDX, every Python and Debian package in it, the same twice."""

from __future__ import annotations

import json
import venv
from typing import TYPE_CHECKING, Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from appliance.errors import CheckError
from appliance.image import sbom

if TYPE_CHECKING:
    from pathlib import Path

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u14
Description: GNU C Library
 with: a colon

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A file system with one Python package, one Debian package and one kernel."""
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / sbom.STATUS).write_text(STATUS)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="Debian GNU/Linux"\nVERSION_ID="12"\n')
    venv.create(tmp_path / sbom.VENV, symlinks=True)
    information = next((tmp_path / sbom.VENV / "lib").glob("python3.*")) / "site-packages/demo-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.2\nLicense: MIT\n")
    manifest = tmp_path / sbom.KERNELS
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"source_hash": "abc", "compiler": "NVRTC 12.8.93", "kernels": {"one": {}}}))
    return tmp_path


def test_the_bill_is_valid_complete_and_the_same_twice(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    text = sbom.bill(image, "v100")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert sbom.bill(image, "v100") == text
    record: dict[str, Any] = json.loads(text)
    assert record["specVersion"] == "1.6"
    assert record["metadata"]["component"]["name"] == "v100-appliance-v100"
    assert record["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    found = {each["name"]: each for each in record["components"]}
    assert found.keys() == {"demo", "libc6", "sm70_kernels"}
    assert found["libc6"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12"
    assert found["demo"]["purl"] == "pkg:pypi/demo@1.2"
    assert found["sm70_kernels"]["version"] == "abc"


def test_no_environment_ends_with_one_line(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (image / sbom.VENV / "pyvenv.cfg").unlink()
    for path in (image / sbom.VENV / "bin").iterdir():
        path.unlink()
    target = tmp_path / "bill.json"
    assert sbom.main(["--root", str(image), "--target", "v100", "--output", str(target)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("sbom: ")
    assert "cannot be listed" in said
    assert said.count("\n") == 1
    assert not target.exists()


def test_a_tree_that_is_not_debian_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="wanted a Debian file system"):
        list(sbom.debian_packages(tmp_path))


def test_an_image_without_kernels_lists_none(tmp_path: Path) -> None:
    assert sbom.kernel_build(tmp_path / "manifest.json") is None
