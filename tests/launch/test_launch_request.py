"""Which machine a start is planned for, and which of its GPUs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from appliance.errors import ConfigurationError
from appliance.launch import request, settings
from appliance.paths import TOPOLOGIES
from appliance.topology import live, recorded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from appliance.topology.machine import Machine


@pytest.fixture
def eight() -> Machine:
    machine = recorded.load(TOPOLOGIES / "8xv100-dgx1.json")
    return replace(machine, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index}{gpu.index}-ab") for gpu in machine.gpus))


def asked(words: list[str], environ: Mapping[str, str], cwd: Path) -> request.Request:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    settings.add_options(parser)
    return request.from_arguments(parser.parse_args(words), environ, cwd)


def test_a_recording_stands_in_for_the_machine(tmp_path: Path) -> None:
    path = str(TOPOLOGIES / "1xh200.json")
    for words, environ in ((["--topology", path], {}), ([], {"APPLIANCE_TOPOLOGY": path})):
        found = asked([*words, "--", "--seed", "1"], environ, tmp_path)
        assert found.machine.name == "1xh200"
        assert found.machine.source != request.LIVE
        assert found.passthrough == ("--seed", "1")


def test_text_of_nvidia_smi_goes_with_its_xml_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as said:
        asked(["--smi-xml", "a.xml"], {}, tmp_path)
    assert str(said.value) == "command line: smi_xml goes with topology, the text of `nvidia-smi topo -m`"


def test_without_a_recording_this_machine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: Machine
) -> None:
    monkeypatch.setattr(live, "detect", lambda: eight)
    assert asked([], {}, tmp_path).machine == eight
    assert [gpu.index for gpu in asked([], {"CUDA_VISIBLE_DEVICES": "4,5"}, tmp_path).machine.gpus] == [4, 5]


def test_detection_calls_itself_what_request_takes_for_live() -> None:
    assert live.detect().source == request.LIVE


@pytest.mark.parametrize(
    ("given", "indices"),
    [
        ("4,5,6,7", [4, 5, 6, 7]),
        ("7, 0", [0, 7]),
        ("GPU-33-ab,1", [1, 3]),
        ("GPU-3", [3]),
        ("", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("0,1,2,3,4,5,6,7", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_hidden_gpus_are_left_alone(given: str, indices: list[int], eight: Machine) -> None:
    found = request.visible(eight, {"CUDA_VISIBLE_DEVICES": given})
    assert [gpu.index for gpu in found.gpus] == indices
    assert found.links == tuple(tuple(eight.links[i][j] for j in indices) for i in indices)
    hidden = 8 - len(indices)
    notes = (f"CUDA_VISIBLE_DEVICES={given} hides the other {hidden} GPUs",) if hidden else ()
    assert found.notes == (*eight.notes, *notes)


@pytest.mark.parametrize("entry", ["8", "-1", "GPU-", "MIG-1", "all", "GPU-9"])
def test_a_gpu_that_is_not_there_is_one_line(entry: str, eight: Machine) -> None:
    with pytest.raises(ConfigurationError) as said:
        request.visible(eight, {"CUDA_VISIBLE_DEVICES": f"0,{entry}"})
    assert str(said.value) == (
        f'environment CUDA_VISIBLE_DEVICES is "0,{entry}", and "{entry}" is none of the GPUs 0, 1, 2, 3, 4, 5, 6, 7; '
        "name GPUs by their number in `nvidia-smi` or by UUID"
    )


def test_a_machine_without_gpus_has_none_to_hide() -> None:
    machine = recorded.load(TOPOLOGIES / "none.json")
    assert request.visible(machine, {"CUDA_VISIBLE_DEVICES": "0"}) == machine
