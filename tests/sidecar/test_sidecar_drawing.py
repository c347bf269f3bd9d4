"""Where GPUs and NVLinks are drawn, for every recorded machine."""

from __future__ import annotations

from itertools import combinations

import pytest

from appliance import paths
from appliance.sidecar.drawing import BOX, draw, nvlinks
from appliance.topology import recorded
from appliance.topology.machine import Link

PCIE = Link("sys")

MACHINES = sorted(file.stem for file in paths.TOPOLOGIES.glob("*.json"))


@pytest.mark.parametrize("name", MACHINES)
def test_every_gpu_once_and_every_nvlink_one_lane(name: str) -> None:
    machine = recorded.load(paths.TOPOLOGIES / f"{name}.json")
    drawings = draw(machine, [0, 1])
    assert sorted(box.index for drawing in drawings for box in drawing.boxes) == [gpu.index for gpu in machine.gpus]
    count = sum(nvlinks(machine, a, b) for a, b in combinations(range(len(machine.gpus)), 2))
    assert sum(len(drawing.lanes) for drawing in drawings) == count


@pytest.mark.parametrize("name", MACHINES)
def test_boxes_stand_clear_of_each_other_and_inside(name: str) -> None:
    for drawing in draw(recorded.load(paths.TOPOLOGIES / f"{name}.json"), []):
        for box in drawing.boxes:
            assert 0 <= box.x <= drawing.width - BOX[0]
            assert 0 <= box.y <= drawing.height - BOX[1]
        for a, b in combinations(drawing.boxes, 2):
            assert abs(a.x - b.x) >= BOX[0] or abs(a.y - b.y) >= BOX[1]


def test_the_full_mesh_is_told_in_words_and_the_choice_is_marked() -> None:
    (drawing,) = draw(recorded.load(paths.TOPOLOGIES / "4xv100-sxm2-16gb.json"), [0, 1, 2])
    assert drawing.title == "GPUs 0, 1, 2, 3 joined by NVLink"
    assert "GPU 0 to GPU 3: 2 NVLinks" in drawing.description
    assert [box.chosen for box in drawing.boxes] == [True, True, True, False]
    assert sum(lane.chosen for lane in drawing.lanes) == 6


def test_pairs_and_lone_gpus_are_drawn_apart() -> None:
    machine = recorded.load(paths.TOPOLOGIES / "4xv100-sxm2-16gb.json")
    cut = [
        [link if {a, b} == {0, 1} or a == b else PCIE for b, link in enumerate(row)]
        for a, row in enumerate(machine.links)
    ]
    split = type(machine)(machine.name, machine.source, machine.gpus, tuple(map(tuple, cut)))
    assert [drawing.title for drawing in draw(split, [])] == [
        "GPUs 0, 1 joined by NVLink",
        "GPUs 2, 3 without NVLink",
    ]


def test_no_gpu_is_no_drawing() -> None:
    assert draw(recorded.load(paths.TOPOLOGIES / "none.json"), []) == ()
