"""Shared libraries in the 64-bit ELF format: their sections, and the same library with parts of its file left out.

Layout as in the System V ABI, chapters 4 and 5, and elf.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = 4096
"""What x86-64 maps at once: a loaded part of a file begins on a page in the file and in memory."""

LOAD = 1
NOBITS = 8

_IDENT = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")


class NotAnElf(ValueError):  # noqa: N818 - says what the file is
    """The bytes are no little-endian 64-bit ELF file."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section header: where it is in the file (bytes), unless its kind is NOBITS."""

    name: str
    kind: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header; the fields in the file's order."""

    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    in_file: int
    in_memory: int
    alignment: int


Range = tuple[int, int]
"""Where something begins and where it ends, in bytes of the file."""


def sections(data: bytes) -> list[Section]:
    """Return the sections in the order of their headers. Raises NotAnElf."""
    header = _header(data)
    at, size, count, names = header[6], header[11], header[12], header[13]
    raw = [_SECTION.unpack_from(data, at + index * size) for index in range(count)]
    if not raw:
        return []
    strings = raw[names][4]
    return [Section(_text(data, strings + fields[0]), fields[1], fields[4], fields[5]) for fields in raw]


def segments(data: bytes) -> list[Segment]:
    """Return the program headers. Raises NotAnElf."""
    header = _header(data)
    at, size, count = header[5], header[9], header[10]
    return [Segment(*_SEGMENT.unpack_from(data, at + index * size)) for index in range(count)]


def without(data: bytes, holes: Sequence[Range]) -> bytes:
    """Return the library without what lies in `holes`: ascending ranges of whole pages of loaded segments.

    Every address stays as it is: each loaded segment becomes several, and no memory is at the addresses between them.
    The program headers, being more, move to the end of the file.
    """
    assert all(start % PAGE == 0 and end % PAGE == 0 and start < end for start, end in holes)
    new = b"".join(data[start:end] for start, end in _between(0, len(data), holes))
    padding = -len(new) % 8
    headers = [part for segment in segments(data) for part in _parts(segment, holes)]
    header = list(_header(data))
    header[5], header[10] = len(new) + padding, len(headers)
    at, size, count = header[6], header[11], header[12]
    header[6] = moved(at, holes)
    out = bytearray(new + bytes(padding) + b"".join(_SEGMENT.pack(*_fields(part)) for part in headers))
    _HEADER.pack_into(out, 0, *header)
    for index in range(count):
        fields = list(_SECTION.unpack_from(data, at + index * size))
        if fields[1] != NOBITS:
            start, end = fields[4], fields[4] + fields[5]
            fields[4] = moved(start, holes)
            fields[5] = moved(end, holes) - fields[4]
            _SECTION.pack_into(out, header[6] + index * size, *fields)
    return bytes(out)


def moved(offset: int, holes: Sequence[Range]) -> int:
    """Return where the byte at `offset` is once the holes are gone; one inside a hole is where the hole was."""
    return offset - sum(min(end, offset) - start for start, end in holes if start < offset)


def _parts(segment: Segment, holes: Sequence[Range]) -> Iterator[Segment]:
    if segment.kind != LOAD:
        yield replace(segment, offset=moved(segment.offset, holes))
        return
    end = segment.offset + segment.in_file
    kept = list(_between(segment.offset, end, holes))
    for start, stop in kept:
        shift = start - segment.offset
        last = stop == end
        yield replace(
            segment,
            offset=moved(start, holes),
            address=segment.address + shift,
            physical=segment.physical + shift,
            in_file=stop - start,
            in_memory=segment.in_memory - shift if last else stop - start,
            # The loader wants offset and address to agree modulo the alignment. The first segment, which begins the
            # file, still tells how the whole is to be aligned.
            alignment=segment.alignment if start == 0 else min(segment.alignment, PAGE),
        )
    assert kept, "a hole covers a whole segment"


def _between(start: int, end: int, holes: Sequence[Range]) -> Iterator[Range]:
    for first, last in holes:
        if last <= start or first >= end:
            continue
        if first > start:
            yield start, first
        start = last
    if start < end or not holes:
        yield start, end


def _fields(segment: Segment) -> tuple[int, ...]:
    return (
        segment.kind,
        segment.flags,
        segment.offset,
        segment.address,
        segment.physical,
        segment.in_file,
        segment.in_memory,
        segment.alignment,
    )


def _header(data: bytes) -> tuple[int, ...]:
    if len(data) < _HEADER.size or data[:6] != _IDENT:
        raise NotAnElf("no little-endian 64-bit ELF file")
    return _HEADER.unpack_from(data)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(0, at)].decode()
