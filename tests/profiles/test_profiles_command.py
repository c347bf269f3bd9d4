"""`appliance profiles` as a person runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from appliance.cli import main
from appliance.paths import PROFILES, TOPOLOGIES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("complete_build")


@pytest.fixture(autouse=True)
def _no_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APPLIANCE_PROFILE", raising=False)
    monkeypatch.delenv("APPLIANCE_FORCE", raising=False)


def recorded(name: str) -> list[str]:
    return ["--topology", str(TOPOLOGIES / f"{name}.json")]


def test_list_shows_the_machine_then_what_fits_and_what_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "list", *recorded("4xv100-sxm2-16gb")]) == 0
    text = capsys.readouterr().out
    assert text.index("Machine: 4xv100-sxm2-16gb") < text.index("Fits:") < text.index("Does not fit:")
    assert "qwen38_27b_fp8_c32" in text[text.index("Fits:") : text.index("Does not fit:")]
    assert "qwen38_27b_fp8_tp2" in text[text.index("Does not fit:") :]


def test_list_is_no_failure_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "list", *recorded("1xh200")]) == 0
    assert "Nothing fits." in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(TOPOLOGIES.glob("*.json")), ids=lambda path: path.stem)
def test_select_as_json_on_every_recording(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["profiles", "select", "--topology", str(path), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == 1
    assert record["machine"]["name"] == path.stem
    assert (record["chosen"] is None) is bool(status)
    assert all(fit["reasons"] for fit in record["rejected"])
    for fit in (*record["ranked"], *record["rejected"]):
        assert fit["memory"] is None or fit["memory"]["explanation"]


def test_select_tells_the_choice_and_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "select", *recorded("4xv100-sxm2-16gb")]) == 0
    text = capsys.readouterr().out
    assert "leaves 4.07 GiB for KV" in text
    assert "Chosen: qwen38_27b_nvfp4_dflash2 on GPU 0, 1, 2, 3 (best fit)" in text


def test_select_fails_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "select", *recorded("1xh200")]) == 1
    assert "Chosen: none; nothing would be started." in capsys.readouterr().out


def test_environment_pins_and_forces(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("APPLIANCE_PROFILE", "qwen38_27b_nvfp4_dflash2")
    assert main(["profiles", "select", *recorded("1xh200")]) == 1
    monkeypatch.setenv("APPLIANCE_FORCE", "1")
    capsys.readouterr()
    assert main(["profiles", "select", *recorded("1xh200")]) == 0
    assert "(forced)" in capsys.readouterr().out
    assert main(["profiles", "select", "--profile", "portable_smollm2", *recorded("1xh200")]) == 0


def test_force_is_1_or_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("APPLIANCE_FORCE", "maybe")
    assert main(["profiles", "select", *recorded("none")]) == 2
    assert capsys.readouterr().err == 'appliance: environment APPLIANCE_FORCE is "maybe"; wanted 1 or 0\n'


def test_a_profile_of_ones_own_is_pinned_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "mine.yaml"
    text = (PROFILES / "portable_smollm2.yaml").read_text(encoding="utf-8")
    own.write_text(text.replace("name: portable_smollm2", "name: mine"), encoding="utf-8")
    assert main(["profiles", "select", "--profile", str(own), "--json", *recorded("none")]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == "mine"


def test_select_reads_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "select", "--model", str(tmp_path / "none"), *recorded("none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_show_gives_the_profile_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "qwen38_27b_nvfp4_dflash2"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert main(["profiles", "show", "qwen38_27b_nvfp4_dflash2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown
    assert shown["arguments"]["max_num_batched_tokens"] == 4096
    assert shown["figures"]["kv_capacity"]["provenance"] == "published"


def test_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "qwen38_27b_fp8_tp4"]) == 2
    assert 'no profile "qwen38_27b_fp8_tp4"; did you mean "qwen38_27b_fp8_tp2"' in capsys.readouterr().err
    assert main(["profiles", "select", "--smi-xml", "x.xml"]) == 2
    assert "--smi-xml goes with --topology FILE" in capsys.readouterr().err
