"""Islands and best sets, on boards that exist and on any that hypothesis can think of."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.paths import TOPOLOGIES
from appliance.topology.islands import best_set, describe, is_full_mesh, nvlink_islands, peer_islands
from appliance.topology.machine import Gpu, Link, LinkKind, Machine
from appliance.topology.recorded import load

if TYPE_CHECKING:
    from collections.abc import Callable

V100 = 34089205760


def board(
    count: int, link: Callable[[int, int], Link], indices: tuple[int, ...] | None = None, **gpu: object
) -> Machine:
    names = indices or tuple(range(count))
    gpus = tuple(Gpu(i, "Tesla V100-SXM2-32GB", (7, 0), V100, **gpu) for i in names)  # type: ignore[arg-type]
    links = tuple(tuple(Link("self") if i == j else link(i, j) for j in range(count)) for i in range(count))
    return Machine("test", "test", gpus, links)


def dgx1() -> Machine:
    return load(TOPOLOGIES / "8xv100-dgx1.json")


def test_dgx1_islands_are_its_two_quads_and_the_pairs_between_them() -> None:
    wanted = ((0, 1, 2, 3), (4, 5, 6, 7), (0, 4), (1, 5), (2, 6), (3, 7))
    assert nvlink_islands(dgx1()) == wanted
    assert peer_islands(dgx1()) == wanted
    assert not is_full_mesh(dgx1())
    assert is_full_mesh(dgx1(), (4, 5, 6, 7))
    assert not is_full_mesh(dgx1(), (0, 1, 4, 5))


def test_dgx1_best_four_is_the_lower_quad_and_the_other_when_a_gpu_of_it_is_taken() -> None:
    best = best_set(dgx1(), 4)
    assert (best.gpus, best.kind, best.nvlinks_min, best.nvlinks_total) == ((0, 1, 2, 3), "nvlink", 1, 9)
    assert best.reason == "NVLink joins every pair of GPUs 0, 1, 2, 3: 1 link at the weakest pair, 9 in all"
    assert best_set(dgx1(), 4, eligible={0, 1, 3, 4, 5, 6, 7}).gpus == (4, 5, 6, 7)


def test_dgx1_best_pair_has_two_links_and_eight_have_no_mesh() -> None:
    best = best_set(dgx1(), 2)
    assert (best.gpus, best.nvlinks_min) == ((0, 3), 2)
    whole = best_set(dgx1(), 8)
    assert (whole.gpus, whole.kind) == (tuple(range(8)), "any")
    assert whole.reason == ("no 8 GPUs can all read each other: of 0, 1, 2, 3, 4, 5, 6, 7, GPUs 0 and 5 cannot")


def test_peer_pairs_over_pcie() -> None:
    machine = load(TOPOLOGIES / "4xv100-pcie-split.json")
    assert peer_islands(machine) == ((0, 1), (2, 3))
    assert nvlink_islands(machine) == ((0,), (1,), (2,), (3,))
    best = best_set(machine, 2, eligible=[1, 2, 3])
    assert (best.gpus, best.kind) == ((2, 3), "peer")
    assert best.reason == "every pair of GPUs 2, 3 can read each other, but NVLink does not join every pair"
    assert best_set(machine, 3).kind == "any"


def test_nvlink_without_word_on_peer_access_counts_as_readable_and_pcie_does_not() -> None:
    assert peer_islands(board(2, lambda i, j: Link("nvlink", 2))) == ((0, 1),)
    silent = board(2, lambda i, j: Link("pix"))
    assert peer_islands(silent) == ((0,), (1,))
    assert best_set(silent, 2).reason == "nothing tells whether GPUs 0 and 1 of 0, 1 can read each other"


def test_nvlink_whose_peer_access_is_denied_is_no_peer() -> None:
    machine = board(2, lambda i, j: Link("nvlink", 2, 2, peer_access=False))
    assert peer_islands(machine) == ((0,), (1,))
    assert is_full_mesh(machine)


def test_one_way_access_is_no_access() -> None:
    assert peer_islands(board(2, lambda i, j: Link("pix", peer_access=i < j))) == ((0,), (1,))


def test_shorter_paths_decide_among_equals() -> None:
    near = {(1, 2)}
    machine = board(3, lambda i, j: Link("pix" if (min(i, j), max(i, j)) in near else "sys", peer_access=True))
    assert best_set(machine, 2).gpus == (1, 2)


def test_gpus_are_named_by_index_when_one_before_them_was_lost() -> None:
    machine = board(3, lambda i, j: Link("nvlink", 2, 2, True), indices=(0, 2, 3))
    assert nvlink_islands(machine) == ((0, 2, 3),)
    assert best_set(machine, 2, eligible={2, 3}).gpus == (2, 3)


@pytest.mark.parametrize(
    ("count", "kind", "reason"),
    [
        (0, "none", "no GPU is wanted"),
        (1, "single", "GPU 0 alone needs no link"),
        (3, "none", "2 GPUs to choose from, 3 wanted"),
    ],
)
def test_sets_that_are_no_pair(count: int, kind: str, reason: str) -> None:
    best = best_set(board(2, lambda i, j: Link("nvlink", 2)), count)
    assert (best.kind, best.reason) == (kind, reason)
    assert len(best.gpus) == (1 if count == 1 else 0)


def test_no_gpu_at_all() -> None:
    machine = Machine("none", "test")
    assert nvlink_islands(machine) == ()
    assert not is_full_mesh(machine)
    assert best_set(machine, 4).reason == "0 GPUs to choose from, 4 wanted"
    assert describe(machine) == ["No GPU is visible."]


def test_description_warns_of_mig_and_of_a_prohibited_gpu() -> None:
    lines = describe(board(2, lambda i, j: Link("phb", peer_access=False), mig=True, compute_mode="Prohibited"))
    assert lines == [
        "2 × Tesla V100-SXM2-32GB: compute capability 7.0, 31.7 GiB each.",
        "No NVLink between GPUs.",
        "No GPU can read another GPU's memory.",
        "GPU 0 is in MIG mode: turn it off to use the whole GPU.",
        "GPU 1 is in MIG mode: turn it off to use the whole GPU.",
        "GPU 0 has compute mode Prohibited: no program can use it (`nvidia-smi -i 0 -c DEFAULT`).",
        "GPU 1 has compute mode Prohibited: no program can use it (`nvidia-smi -i 1 -c DEFAULT`).",
    ]


def test_description_of_a_mesh_with_unequal_links() -> None:
    lines = describe(board(3, lambda i, j: Link("nvlink", 1 if i + j == 1 else 2, 2, True)))
    assert "NVLink joins every pair of GPUs, 1 to 2 links each: a full mesh." in lines


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    count = draw(st.integers(0, 7))
    kinds: list[LinkKind] = ["nvlink", "pix", "phb", "sys", "unknown"]
    links: dict[tuple[int, int], Link] = {}
    for pair in combinations(range(count), 2):
        kind = draw(st.sampled_from(kinds))
        links[pair] = Link(
            kind,
            draw(st.integers(1, 3)) if kind == "nvlink" else 0,
            peer_access=draw(st.sampled_from([True, False, None])),
        )
    return board(count, lambda i, j: links[min(i, j), max(i, j)])


@given(machines())
def test_islands_are_the_groups_that_cannot_grow(machine: Machine) -> None:
    everyone = range(len(machine.gpus))
    joined = {(a, b) for a, b in combinations(everyone, 2) if is_full_mesh(machine, (a, b))}
    groups = [
        set(group)
        for size in range(1, len(everyone) + 1)
        for group in combinations(everyone, size)
        if all(pair in joined for pair in combinations(group, 2))
    ]
    wanted = {tuple(sorted(group)) for group in groups if not any(group < other for other in groups)}
    found = nvlink_islands(machine)
    assert set(found) == wanted
    assert len(found) == len(wanted)
    assert [len(island) for island in found] == sorted((len(island) for island in found), reverse=True)


@given(machines(), st.integers(2, 5))
def test_the_best_set_is_a_mesh_where_one_exists_and_else_peers_where_they_exist(machine: Machine, count: int) -> None:
    best = best_set(machine, count)
    if count > len(machine.gpus):
        assert best.gpus == ()
        return
    if any(len(island) >= count for island in nvlink_islands(machine)):
        assert best.kind == "nvlink"
        assert is_full_mesh(machine, best.gpus)
        assert best.nvlinks_min >= 1
    elif any(len(island) >= count for island in peer_islands(machine)):
        assert best.kind == "peer"
        assert any(set(best.gpus) <= set(island) for island in peer_islands(machine))
    else:
        assert best.kind == "any"
    assert len(best.gpus) == count
    assert best.gpus == tuple(sorted(best.gpus))
