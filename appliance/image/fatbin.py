"""Device code in a library: containers, each with the same code for several GPUs, and what one GPU needs of them.

A container is a header (magic, version, header's and payload's size) and entries that follow each other; an entry is a
header with its kind, sizes and the GPU's number (`sm_70` is 70), and the code. Read off the libraries of CUDA 12.8;
`cuobjdump` lists the same.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
"""The sections of a host library that hold containers: linked code, and what was linked from."""

PTX, CUBIN = 1, 2

MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQ")
_GPU_AT = 28
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """Code for one GPU. `start` and `end` are bytes of the file, its header included."""

    kind: int
    gpu: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Container:
    """One container. `payload` is where its first entry begins."""

    start: int
    payload: int
    end: int
    entries: tuple[Entry, ...]


def containers(data: bytes, start: int, size: int) -> Iterator[Container]:
    """Yield the containers in `size` bytes from `start`; between them there may be zeros.

    Raises CheckError for bytes that are neither: nothing is to be cut out of what is not understood.
    """
    at, stop = start, start + size
    while at + _CONTAINER.size <= stop:
        magic, _, header, payload = _CONTAINER.unpack_from(data, at)
        if magic == 0 and not any(data[at : at + _ALIGNMENT]):
            at += _ALIGNMENT
            continue
        end = at + header + payload
        if magic != MAGIC or header < _CONTAINER.size or end > stop:
            raise CheckError(f"device code at byte {at} is not in CUDA 12.8's form; wanted a container; leave it whole")
        yield Container(at, at + header, end, tuple(_entries(data, at + header, end)))
        at = end


def _entries(data: bytes, at: int, stop: int) -> Iterator[Entry]:
    while at < stop:
        kind, _, header, payload = _ENTRY.unpack_from(data, at)
        end = at + header + payload
        if kind not in (PTX, CUBIN) or header < _GPU_AT + 4 or end > stop:
            raise CheckError(f"device code at byte {at} is not in CUDA 12.8's form; wanted an entry; leave it whole")
        yield Entry(kind, struct.unpack_from("<I", data, at + _GPU_AT)[0], at, end)
        at = end


def needed(container: Container, gpu: int) -> tuple[Entry, ...]:
    """Return what a GPU needs of a container: its cubins, else the newest PTX that it can translate, else nothing."""
    own = tuple(entry for entry in container.entries if entry.kind == CUBIN and entry.gpu == gpu)
    translatable = [entry for entry in container.entries if entry.kind == PTX and entry.gpu <= gpu]
    newest = max((entry.gpu for entry in translatable), default=0)
    return own or tuple(entry for entry in translatable if entry.gpu == newest)


def placeholder(found: Iterable[Container], gpu: int) -> tuple[Entry, ...]:
    """Return the smallest entry of a library that `gpu` cannot use, to stand where a container has nothing for it.

    To the driver an empty container is broken, one for other GPUs alone is an ordinary case: it is passed over, and a
    launch says that there is no code for this GPU.
    """
    foreign = (entry for each in found if not needed(each, gpu) for entry in each.entries)
    smallest = min(foreign, key=lambda entry: (entry.end - entry.start, entry.start), default=None)
    return () if smallest is None else (smallest,)


def reduced(data: bytes, container: Container, entries: tuple[Entry, ...]) -> bytes:
    """Return the container with only `entries`, to stand where it stood."""
    header = bytearray(data[container.start : container.payload])
    body = b"".join(data[entry.start : entry.end] for entry in entries)
    magic, version, size, _ = _CONTAINER.unpack_from(header)
    _CONTAINER.pack_into(header, 0, magic, version, size, len(body))
    return bytes(header) + body
