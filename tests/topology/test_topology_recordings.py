"""The recordings that are shipped: what each is there to stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.paths import TOPOLOGIES
from appliance.topology.islands import best_set, is_full_mesh, nvlink_islands, peer_islands
from appliance.topology.recorded import load, save

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
SHIPPED = {
    "4xv100-sxm2-16gb",
    "4xv100-sxm2-32gb",
    "8xv100-dgx1",
    "4xv100-pcie-split",
    "2xv100-sxm2-32gb",
    "3xv100-1xt4",
    "1xh200",
    "none",
}
V100_NVLINKS = 6


def test_the_recordings_are_those_that_are_promised() -> None:
    assert {path.stem for path in TOPOLOGIES.iterdir()} == SHIPPED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_recording_is_whole_and_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    path = TOPOLOGIES / f"{name}.json"
    machine = load(path)
    assert machine.name == name
    assert machine.source == "constructed"
    assert "not taken from a machine of ours" in machine.notes[0]
    assert machine.host.cpus
    assert machine.host.cpus >= 2
    assert machine.host.memory_bytes
    assert machine.host.shm_bytes
    assert [gpu.index for gpu in machine.gpus] == list(range(len(machine.gpus)))
    assert all(gpu.capability and gpu.memory_bytes for gpu in machine.gpus)
    assert (machine.driver is None) == (machine.gpus == ())
    save(machine, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_no_v100_has_more_than_its_six_nvlinks(name: str) -> None:
    machine = load(TOPOLOGIES / f"{name}.json")
    for gpu, row in zip(machine.gpus, machine.links, strict=True):
        used = sum(link.nvlinks for link in row)
        assert used <= (V100_NVLINKS if gpu.is_volta else 0)
        assert all(link.nvlink_version == 2 for link in row if link.kind == "nvlink")


@pytest.mark.parametrize(("gib", "memory"), [(16, 16160 * MIB), (32, 32510 * MIB)])
def test_four_on_one_board_use_all_their_nvlinks(gib: int, memory: int) -> None:
    machine = load(TOPOLOGIES / f"4xv100-sxm2-{gib}gb.json")
    assert {(gpu.name, gpu.capability, gpu.memory_bytes) for gpu in machine.gpus} == {
        (f"Tesla V100-SXM2-{gib}GB", (7, 0), memory)
    }
    assert is_full_mesh(machine)
    assert [sum(link.nvlinks for link in row) for row in machine.links] == [V100_NVLINKS] * 4
    assert best_set(machine, 4).nvlinks_min == 2


def test_dgx1_uses_all_its_nvlinks_and_peers_only_over_them() -> None:
    machine = load(TOPOLOGIES / "8xv100-dgx1.json")
    assert [sum(link.nvlinks for link in row) for row in machine.links] == [V100_NVLINKS] * 8
    assert nvlink_islands(machine) == peer_islands(machine)


def test_split_pcie_board() -> None:
    machine = load(TOPOLOGIES / "4xv100-pcie-split.json")
    assert {gpu.name for gpu in machine.gpus} == {"Tesla V100-PCIE-32GB"}
    assert peer_islands(machine) == ((0, 1), (2, 3))
    assert nvlink_islands(machine) == ((0,), (1,), (2,), (3,))


def test_mixed_board_and_others() -> None:
    mixed = load(TOPOLOGIES / "3xv100-1xt4.json")
    assert [gpu.capability for gpu in mixed.gpus] == [(7, 0), (7, 0), (7, 0), (7, 5)]
    assert mixed.gpus[3].memory_bytes == 15360 * MIB
    assert peer_islands(mixed) == ((0, 1, 2), (3,))
    assert is_full_mesh(load(TOPOLOGIES / "2xv100-sxm2-32gb.json"))
    (h200,) = load(TOPOLOGIES / "1xh200.json").gpus
    assert (h200.name, h200.capability, h200.memory_bytes) == ("NVIDIA H200", (9, 0), 143771 * MIB)
    assert load(TOPOLOGIES / "none.json").gpus == ()
