"""`appliance topology` as a person runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pynvml
import pytest

from appliance import cli
from appliance.paths import TOPOLOGIES
from appliance.topology.recorded import load
from tests.topology.fake_nvml import FakeNvml, four_v100

DATA = Path(__file__).with_name("data")
DGX1 = str(TOPOLOGIES / "8xv100-dgx1.json")


def test_a_recorded_machine_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topology", "--topology", str(TOPOLOGIES / "3xv100-1xt4.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "3xv100-1xt4 (constructed), driver 580.95.05",
        "",
        "GPU  name                  capability  memory    MIG  ECC  compute mode  NUMA node",
        "0    Tesla V100-SXM2-32GB  7.0         31.7 GiB  -    on   Default       0",
        "1    Tesla V100-SXM2-32GB  7.0         31.7 GiB  -    on   Default       0",
        "2    Tesla V100-SXM2-32GB  7.0         31.7 GiB  -    on   Default       0",
        "3    Tesla T4              7.5         15.0 GiB  -    on   Default       1",
        "",
        "      GPU0  GPU1  GPU2  GPU3",
        "GPU0  X     NV2   NV2   SYS",
        "GPU1  NV2   X     NV2   SYS",
        "GPU2  NV2   NV2   X     SYS",
        "GPU3  SYS   SYS   SYS   X",
        "",
        "3 × Tesla V100-SXM2-32GB: compute capability 7.0, 31.7 GiB each; "
        "1 × Tesla T4: compute capability 7.5, 15.0 GiB.",
        "NVLink joins the pairs within {0,1,2}, and no others.",
        "GPUs that can read each other's memory: {0,1,2}.",
        "Best set of four: no 4 GPUs can all read each other: of 0, 1, 2, 3, GPUs 0 and 3 cannot.",
        "Host: 40 CPUs, memory 251.0 GiB, /dev/shm 64.0 GiB.",
        "Note: constructed from public board layouts and from what drivers report, not taken from a machine of ours",
    ]


def test_no_gpu_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topology", "--topology", str(TOPOLOGIES / "none.json")]) == 0
    assert "No GPU is visible." in capsys.readouterr().out


def test_json_holds_what_follows_and_is_itself_a_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["topology", "--topology", DGX1, "--json"]) == 0
    text = capsys.readouterr().out
    derived = json.loads(text)["derived"]
    assert derived["full_mesh"] is False
    assert derived["nvlink_islands"][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert derived["best_set_of_four"]["gpus"] == [0, 1, 2, 3]
    (tmp_path / "printed.json").write_text(text)
    assert load(tmp_path / "printed.json") == load(Path(DGX1))


def test_pasted_text_can_be_saved_as_a_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, query = tmp_path / "box.json", str(DATA / "4xv100_sxm2.xml")
    text = str(DATA / "4xv100_sxm2.txt")
    assert cli.main(["topology", "--topology", text, "--smi-xml", query, "--save", str(out)]) == 0
    assert "NVLink joins every pair of GPUs, 2 links each: a full mesh." in capsys.readouterr().out
    assert load(out) == load(Path(text))


def test_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(four_v100()))
    assert cli.main(["topology"]) == 0
    assert capsys.readouterr().out.startswith("this machine (NVML), driver 570.172.08\n")


def test_this_machine_without_a_driver(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([], init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert cli.main(["topology", "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert note.startswith("no GPU can be seen: the NVIDIA kernel driver is not loaded")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--topology", "no-such-file"], 2, "appliance: no file no-such-file"),
        (["--topology", str(DATA / "1xt4.xml")], 2, "(this is XML: give it as --smi-xml, beside that text)"),
        (["--topology", str(DATA / "p2p_read.txt")], 2, "the table of `nvidia-smi topo -m` is wanted"),
        (["--smi-xml", "q.xml"], 2, "appliance: --smi-xml goes with --topology FILE, the text of `nvidia-smi topo -m`"),
        (["--topology", DGX1, "--save", "/proc/no/box.json"], 1, "appliance: cannot write /proc/no/box.json"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["topology", *words]) == status
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
