"""Leaving parts of a library's file out: every byte that stays keeps its address."""

from __future__ import annotations

import pytest

from appliance.image import elf
from tests.image_build import elf_maker

PAGE = elf.PAGE


def memory(data: bytes) -> dict[int, bytes]:
    """What a loader maps: the bytes of each page, by address."""
    pages = {}
    for segment in elf.segments(data):
        if segment.kind == elf.LOAD:
            assert (segment.address - segment.offset) % segment.alignment == 0
            for at in range(0, segment.in_file, PAGE):
                size = min(PAGE, segment.in_file - at)
                pages[segment.address + at] = data[segment.offset + at : segment.offset + at + size]
    return pages


@pytest.fixture
def whole() -> bytes:
    pattern = b"".join(bytes([number]) * PAGE for number in range(10))
    return elf_maker.library(elf_maker.Part(".text", pattern), elf_maker.Part(".tail", b"tail"))


@pytest.mark.parametrize(
    "holes",
    [
        [(2 * PAGE, 4 * PAGE)],
        [(PAGE, 2 * PAGE), (3 * PAGE, 5 * PAGE), (10 * PAGE, 11 * PAGE)],
        [(2 * PAGE, 3 * PAGE), (3 * PAGE, 4 * PAGE)],
    ],
)
def test_every_page_outside_the_holes_is_mapped_where_it_was(whole: bytes, holes: list[elf.Range]) -> None:
    before, after = memory(whole), memory(elf.without(whole, holes))
    # Address and place in the file are the same in this library's first segment.
    gone = {at for start, end in holes for at in range(start, end, PAGE)}
    # The page of the header tells of the new program headers.
    assert {at: page for at, page in after.items() if at} == {
        at: p for at, p in before.items() if at and at not in gone
    }


def test_the_file_shrinks_by_the_holes(whole: bytes) -> None:
    result = elf.without(whole, [(2 * PAGE, 6 * PAGE)])
    assert len(whole) - len(result) == pytest.approx(4 * PAGE, abs=8 + 4 * 56)


def test_sections_and_other_segments_are_found_again(whole: bytes) -> None:
    result = elf.without(whole, [(2 * PAGE, 6 * PAGE)])
    found = {section.name: section for section in elf.sections(result)}
    assert found[".text"].size == 6 * PAGE
    for name, wanted in ((".tail", b"tail"), (".data", b"writable")):
        section = found[name]
        assert result[section.offset : section.offset + section.size] == wanted
    other = next(segment for segment in elf.segments(result) if segment.kind != elf.LOAD)
    assert result[other.offset : other.offset + other.in_file] == b"writable"


def test_memory_without_file_stays_with_the_last_part(whole: bytes) -> None:
    result = elf.without(whole, [(2 * PAGE, 6 * PAGE)])
    assert [s.in_memory - s.in_file for s in elf.segments(result) if s.kind == elf.LOAD] == [0, 0, 100]


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n" * 20, b"\x7fELF\x01\x01" + bytes(100)])
def test_another_file_is_no_library(data: bytes) -> None:
    with pytest.raises(elf.NotAnElf):
        elf.sections(data)
