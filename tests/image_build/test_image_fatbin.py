"""What one GPU needs of the device code in a library."""

from __future__ import annotations

import pytest

from appliance.errors import CheckError
from appliance.image import fatbin
from appliance.image.fatbin import CUBIN, PTX
from tests.image_build.elf_maker import container, entry


def read(data: bytes) -> list[fatbin.Container]:
    return list(fatbin.containers(data, 0, len(data)))


def kept(*entries: bytes, gpu: int = 70) -> list[tuple[int, int]]:
    [found] = read(container(*entries))
    return [(each.kind, each.gpu) for each in fatbin.needed(found, gpu)]


def test_containers_follow_each_other_with_zeros_between() -> None:
    data = container(entry(CUBIN, 70, 8), entry(CUBIN, 90, 16)) + bytes(24) + container(entry(PTX, 80, 8)) + bytes(4)
    assert [[(each.kind, each.gpu) for each in found.entries] for found in read(data)] == [
        [(CUBIN, 70), (CUBIN, 90)],
        [(PTX, 80)],
    ]


def test_all_cubins_of_the_gpu_stay_and_nothing_else() -> None:
    assert kept(entry(CUBIN, 60, 8), entry(CUBIN, 70, 8), entry(CUBIN, 70, 16), entry(PTX, 70, 8)) == [(CUBIN, 70)] * 2


def test_without_a_cubin_the_newest_ptx_that_it_can_translate_stays() -> None:
    assert kept(entry(PTX, 52, 8), entry(PTX, 60, 8), entry(PTX, 80, 8), entry(CUBIN, 75, 8)) == [(PTX, 60)]


def test_nothing_is_needed_of_code_for_other_gpus() -> None:
    assert kept(entry(CUBIN, 75, 8), entry(PTX, 80, 8)) == []


def test_a_machine_without_a_gpu_needs_nothing() -> None:
    assert kept(entry(CUBIN, 70, 8), entry(PTX, 52, 8), gpu=0) == []


def test_the_placeholder_is_the_smallest_that_the_gpu_cannot_use() -> None:
    data = container(entry(CUBIN, 70, 8)) + container(entry(CUBIN, 90, 64), entry(CUBIN, 80, 32)) + container()
    [place] = fatbin.placeholder(read(data), 70)
    assert (place.gpu, place.end - place.start) == (80, 96)
    assert fatbin.placeholder(read(container(entry(CUBIN, 70, 8))), 70) == ()


def test_a_reduced_container_is_read_as_one() -> None:
    data = container(entry(CUBIN, 60, 24), entry(CUBIN, 70, 40, b"\x70"), entry(CUBIN, 90, 8))
    [found] = read(data)
    smaller = fatbin.reduced(data, found, fatbin.needed(found, 70))
    assert smaller == container(entry(CUBIN, 70, 40, b"\x70"))


@pytest.mark.parametrize(
    "data",
    [
        b"not device code ",
        container(entry(CUBIN, 70, 64))[:-8],
        container(entry(7, 70, 8)),
        container(entry(CUBIN, 70, 8)[:-8]),
    ],
)
def test_what_is_not_understood_is_refused(data: bytes) -> None:
    with pytest.raises(CheckError, match=r"not in CUDA 12\.8's form"):
        read(data)
