"""What is said where only links are in the way, where GPUs stay idle, and where a paste names no card."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.cli import main
from appliance.paths import PROFILES as FOLDER
from appliance.paths import TOPOLOGIES
from appliance.profiles import catalogue
from appliance.profiles.select import assess
from appliance.topology.machine import Gpu, Link, Machine
from appliance.topology.recorded import load, save

if TYPE_CHECKING:
    from pathlib import Path

PROFILES = catalogue.load_all()
TP2, C32, K32 = "qwen38_27b_fp8_tp2", "qwen38_27b_fp8_c32", "qwen38_27b_fp8_32k"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APPLIANCE_PROFILE", "APPLIANCE_FORCE"):
        monkeypatch.delenv(name, raising=False)


def recorded(name: str) -> Machine:
    return load(TOPOLOGIES / f"{name}.json")


def linked(machine: Machine, link: Link) -> Machine:
    count = range(len(machine.gpus))
    return replace(machine, links=tuple(tuple(Link("self") if i == j else link for j in count) for i in count))


def pasted(count: int, link: Link) -> Machine:
    return linked(Machine("pasted", "topo", tuple(Gpu(i, "unknown", None, None) for i in range(count))), link)


def test_two_gpus_without_peer_access_have_a_way_on() -> None:
    machine = linked(recorded("2xv100-sxm2-32gb"), Link("phb", peer_access=False))
    selection = assess(machine, PROFILES)
    assert selection.chosen is None
    force, own, hypervisor = selection.advice
    assert force.startswith(f"without peer access {TP2} starts on GPUs 0, 1 with APPLIANCE_PROFILE={TP2} and ")
    assert "APPLIANCE_FORCE=1" in force
    assert f"a copy of {TP2}.yaml as own.yaml, with `name: own` and, under `needs`, `links: none`" in own
    assert "hypervisor" in hypervisor
    assert "BIOS" in hypervisor
    for line in selection.advice:
        assert line in str(selection.problem)
    assert "\n" not in str(selection.problem)


def test_each_way_on_that_is_named_leads_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = linked(recorded("2xv100-sxm2-32gb"), Link("phb", peer_access=False))
    save(machine, tmp_path / "vm.json")
    words = ["profiles", "select", "--topology", str(tmp_path / "vm.json")]
    assert main(words) == 1
    assert "What else could be done:\n  - without peer access" in capsys.readouterr().out
    assert main([*words, "--profile", TP2, "--force"]) == 0
    own = tmp_path / "own.yaml"
    text = (
        (FOLDER / f"{TP2}.yaml").read_text().replace(f"name: {TP2}", "name: own").replace("links: peer", "links: none")
    )
    own.write_text(text)
    assert main([*words, "--profile", str(own)]) == 0
    assert "Chosen: own on GPU 0, 1 (pinned)" in capsys.readouterr().out


def test_peer_access_that_is_unknown_is_to_be_found_out_first() -> None:
    machine = linked(recorded("2xv100-sxm2-32gb"), Link("phb"))
    first = assess(machine, PROFILES).advice[0]
    assert first.startswith(
        f"{TP2} fits if GPUs 0, 1 can read each other's memory: `nvidia-smi topo -p2p r` there tells"
    )


def test_a_pinned_profile_is_the_one_that_is_spoken_of() -> None:
    machine = recorded("4xv100-pcie-split")
    selection = assess(machine, PROFILES, pinned=C32)
    assert selection.chosen is None
    assert selection.advice[0].startswith(f"without peer access {C32} starts on GPUs 0-3")
    assert all(TP2 not in line for line in selection.advice)


@pytest.mark.parametrize("machine", ["1xh200", "none"])
def test_other_obstacles_get_no_advice_about_links(machine: str) -> None:
    assert assess(recorded(machine), PROFILES).advice == ()


def test_idle_gpus_have_room_for_further_instances() -> None:
    (line,) = assess(recorded("4xv100-pcie-split"), PROFILES).advice
    assert line == (
        f"a second instance fits on 2,3: {TP2}, started with CUDA_VISIBLE_DEVICES=2,3 and its own --port, "
        "--sidecar-port and --state-dir"
    )
    (line,) = assess(recorded("8xv100-dgx1"), PROFILES).advice
    assert line.startswith("a second instance fits on 4,5,6,7: ")
    assert assess(recorded("3xv100-1xt4"), PROFILES).advice == (), "a V100 and a T4 are left"
    assert assess(recorded("4xv100-sxm2-16gb"), PROFILES).advice == (), "nothing is left"


def test_eight_gpus_in_pairs_hold_four_instances() -> None:
    eight = replace(recorded("8xv100-dgx1"))
    split: Any = [
        [Link("self") if i == j else Link("phb", peer_access=i // 2 == j // 2) for j in range(8)] for i in range(8)
    ]
    gpus = tuple(replace(gpu, memory_bytes=34_089_205_760) for gpu in eight.gpus)
    advice = assess(replace(eight, gpus=gpus, links=tuple(map(tuple, split))), PROFILES).advice
    assert [line.split(":")[0] for line in advice] == [
        "a second instance fits on 2,3",
        "a third instance fits on 4,5",
        "a fourth instance fits on 6,7",
    ]


def test_a_plan_shows_the_second_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = str(TOPOLOGIES / "4xv100-pcie-split.json")
    assert main(["plan", "--topology", split, "--state-dir", str(tmp_path)]) == 0
    assert f"\n  a second instance fits on 2,3: {TP2}, started with " in capsys.readouterr().out


def test_a_paste_is_answered_for_each_likely_card() -> None:
    selection = assess(pasted(4, Link("nvlink", 2)), PROFILES)
    assert selection.chosen is None
    assert selection.by_card == (
        f"if these are V100 16 GB: {C32} on GPUs 0-3",
        f"if these are V100 32 GB: {K32} on GPUs 0-3",
    )
    assert str(selection.problem).startswith(f"nothing names this machine's cards: {selection.by_card[0]}; ")
    assert selection.to_json()["by_card"] == list(selection.by_card)


def test_a_paste_without_nvlink_or_with_idle_gpus() -> None:
    small, large = assess(pasted(2, Link("phb")), PROFILES).by_card
    assert small == f"if these are V100 16 GB: nothing fits; nearest is {C32}: it needs 4 GPUs and this machine has 2"
    assert large.startswith(f"if these are V100 32 GB: {TP2} fits if GPUs 0, 1 can read each other's memory")
    mesh = pasted(5, Link("nvlink", 1))
    assert assess(mesh, PROFILES).by_card[1].endswith(f"{K32} on GPUs 0-3; GPU 4 stays idle")


def test_a_paste_of_other_cards_is_recognised_by_its_nvlinks() -> None:
    (line,) = assess(pasted(4, Link("nvlink", 12)), PROFILES).by_card
    assert line.startswith("GPU 0 has 36 NVLinks and a V100 has 6: these are other cards")


def test_the_commands_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paste = tmp_path / "topo.txt"
    paste.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n")
    assert main(["profiles", "select", "--topology", str(paste)]) == 1
    shown = capsys.readouterr().out
    assert "\nWhich one fits depends on the card:\n  if these are V100 16 GB: nothing fits; " in shown
    assert f"\n  if these are V100 32 GB: {TP2} on GPUs 0, 1\n" in shown
    assert "Nothing fits." not in shown
    assert main(["plan", "--topology", str(paste), "--state-dir", str(tmp_path)]) == 1
    assert f"if these are V100 32 GB: {TP2} on GPUs 0, 1; save `nvidia-smi -q -x` beside" in capsys.readouterr().err
