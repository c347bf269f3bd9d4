"""Makes small shared libraries with device code in them, laid out as the linker lays out large ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass

PAGE = 4096
CODE_AT = PAGE
"""Where the host code's page begins, in the file and in memory."""


def entry(kind: int, gpu: int, size: int, fill: bytes = b"\xaa") -> bytes:
    """Device code for one GPU: a header of 64 bytes, and `size` bytes."""
    header = struct.pack("<HHIQ", kind, 0x0101, 64, size) + bytes(12) + struct.pack("<I", gpu)
    return header.ljust(64, b"\0") + (fill * size)[:size]


def container(*entries: bytes) -> bytes:
    """A container of entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@dataclass(frozen=True)
class Part:
    """A section: its name, its bytes, its kind."""

    name: str
    data: bytes
    kind: int = 1


def library(*parts: Part, data: bytes = b"writable") -> bytes:
    """A library of one read-only segment, which holds `parts` from CODE_AT on, and a writable one behind it."""
    named = [*parts, Part(".data", data)]
    body, places = bytearray(CODE_AT), []
    for part in parts:
        places.append(len(body))
        body += part.data + bytes(-len(part.data) % 8)
    read_only = len(body)
    body += bytes(-len(body) % PAGE)
    # As linkers do: the writable segment's address is one page further than its place in the file.
    places.append(len(body))
    writable = len(body)
    body += data
    names = b"\0" + b"".join(part.name.encode() + b"\0" for part in named) + b".shstrtab\0"
    names_at = len(body)
    body += names + bytes(-len(names) % 8)
    headers_at = len(body)
    rows = [struct.pack("<IIQQQQIIQQ", *([0] * 10))]
    for part, place in zip(named, places, strict=True):
        at = names.index(b"\0" + part.name.encode() + b"\0") + 1
        address = place + (PAGE if place == writable else 0)
        rows.append(struct.pack("<IIQQQQIIQQ", at, part.kind, 2, address, place, len(part.data), 0, 0, 8, 0))
    at = names.index(b"\0.shstrtab\0") + 1
    rows.append(struct.pack("<IIQQQQIIQQ", at, 3, 0, 0, names_at, len(names), 0, 0, 1, 0))
    body += b"".join(rows)
    segments = [
        struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, read_only, read_only, PAGE),
        struct.pack("<IIQQQQQQ", 1, 6, writable, writable + PAGE, 0, len(data), len(data) + 100, PAGE),
        struct.pack("<IIQQQQQQ", 0x6474E550, 4, writable, writable + PAGE, 0, len(data), len(data), 4),
    ]
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",
        *(3, 62, 1, 0, 64, headers_at, 0, 64, 56, len(segments), 64, len(rows), len(rows) - 1),
    )
    body[: len(header)] = header
    body[64 : 64 + 56 * len(segments)] = b"".join(segments)
    return bytes(body)
