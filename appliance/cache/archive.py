"""Export and import of a sealed generation, for sites without a network: one tar, its manifest first.

The manifest is the generation's stamp. The files follow as members that are named by their number in it: what a name in
a tar can do to whoever unpacks it, no name here can, and a header of any other kind than a plain file is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import time
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO, Protocol

from appliance.cache import durable, scan
from appliance.cache.key import key_of
from appliance.cache.place import IMPORTED, Place, erase
from appliance.cache.records import shown
from appliance.cache.stamp import LARGEST, STAMP, Stamp, StampError, Use, parse
from appliance.cache.store import KEY
from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.cache.stamp import Stamped
    from appliance.cache.store import Store

_BLOCK = 512
_GZIP = b"\x1f\x8b"
_TRAILING = 1 << 20
"""Bytes that may follow the last file: tar fills up with zeros to a multiple of 10 KiB."""


@dataclass(frozen=True)
class Archived:
    """What went through an archive. `already_there` is true when an import found the same content in place."""

    key: str
    files: int
    size_bytes: int
    already_there: bool = False


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _DamagedError(Exception):
    """What is wrong with an archive, in a few words."""


def export(store: Store, key: str, file: Path, seen: Callable[[int], None] = scan.nothing_seen) -> Archived:
    """Write a sealed generation to the new file `file`, verified while it is read; whole or not at all.

    Gzip when the name ends in `.gz` or `.tgz`. A start of the same key waits meanwhile. Raises CheckError.
    """
    if os.path.lexists(file):
        raise CheckError(f"{file} is there already; name a new file")
    with store.sealed(key) as stamp:
        temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        try:
            durable.write_new(temporary, _packed(Place(store.root, key), stamp, file, seen))
            durable.rename(temporary, file)
        except OSError as error:
            raise CheckError(f"{file} cannot be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                temporary.unlink()
    return _archived(stamp)


def import_(store: Store, file: Path, seen: Callable[[int], None] = scan.nothing_seen) -> Archived:
    """Bring the generation in `file` into the store, verified while it is read; whole or not at all.

    Raises CheckError for a damaged or truncated archive, for a name that leaves the generation, for a link or a device,
    for a generation that was made in another folder, and for a key that is there with other content.
    """
    try:
        with file.open("rb") as raw, _unpacked(raw) as stream:
            stamp = _manifest(stream)
            place = Place(store.root, stamp.key)
            _acceptable(stamp, place)
            return _bring(store, place, stamp, stream, seen)
    except (_DamagedError, EOFError, zlib.error, gzip.BadGzipFile, tarfile.HeaderError) as error:
        raise CheckError(f"{file} is not taken: {error}; export it anew") from None
    except OSError as error:
        raise CheckError(f"{file} cannot be imported: {error.strerror} ({error.filename or store.root})") from error


def _packed(place: Place, stamp: Stamp, file: Path, seen: Callable[[int], None]) -> Iterator[bytes]:
    plain = _members(place, stamp, seen)
    if not file.name.endswith((".gz", ".tgz")):
        yield from plain
        return
    # Compiled code packs to a third at any level; the first is the one that a disk does not wait for.
    packer = zlib.compressobj(1, wbits=31)
    for data in plain:
        yield packer.compress(data)
    yield packer.flush()


def _members(place: Place, stamp: Stamp, seen: Callable[[int], None]) -> Iterator[bytes]:
    manifest = stamp.dump()
    yield _header(STAMP, len(manifest))
    yield manifest
    yield _padding(len(manifest))
    for number, (name, wanted) in enumerate(sorted(stamp.files.items())):
        with scan.open_file(place.folder / name) as file:
            yield _header(_member(number), wanted.size, executable=bool(os.fstat(file.fileno()).st_mode & 0o111))
            digest, size = hashlib.sha256(), 0
            while data := file.read(durable.CHUNK):
                digest.update(data)
                size += len(data)
                seen(len(data))
                yield data
        if (size, digest.hexdigest()) != (wanted.size, wanted.sha256):
            raise CheckError(f"{shown(name)} in {place.folder} is not as it was sealed; nothing was exported")
        yield _padding(size)
    yield bytes(2 * _BLOCK)


def _header(name: str, size: int, *, executable: bool = False) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o755 if executable else 0o644
    return member.tobuf(tarfile.USTAR_FORMAT)


def _member(number: int) -> str:
    return f"files/{number:08d}"


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


@contextmanager
def _unpacked(raw: BinaryIO) -> Iterator[_Stream]:
    packed = raw.read(len(_GZIP)) == _GZIP
    raw.seek(0)
    if packed:
        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream
    else:
        yield raw


def _manifest(stream: _Stream) -> Stamp:
    try:
        member = _read_header(stream, STAMP)
        if member.size > LARGEST:
            raise _DamagedError(f"its manifest has {member.size} bytes")
        data = b"".join(_read(stream, member.size))
        return parse(data)
    except (StampError, tarfile.HeaderError) as error:
        raise _DamagedError(f"it does not begin with a manifest ({error})") from None


def _acceptable(stamp: Stamp, place: Place) -> None:
    """Raise for a manifest whose generation may not be in `place`, before anything is written."""
    if not KEY.fullmatch(stamp.key) or key_of(stamp.parts) != stamp.key:
        raise _DamagedError("the key in its manifest is not that of its parts")
    if stamp.folder != str(place.folder):
        raise CheckError(
            f"generation {stamp.key} was made in {shown(stamp.folder)}, and its artefacts hold that path; here it "
            f"would be {place.folder}. Import it with --cache-dir {PurePath(shown(stamp.folder)).parent.parent}"
        )
    for name, wanted in stamp.files.items():
        if not scan.is_artefact(name, wanted.size):
            raise _DamagedError(f"{name!a} is no name of an artefact")


def _bring(store: Store, place: Place, stamp: Stamp, stream: _Stream, seen: Callable[[int], None]) -> Archived:
    with store.vacant(stamp.key) as old:
        if old is not None:
            if old.files != stamp.files:
                raise CheckError(f"generation {stamp.key} is there already with other content; remove it first")
            return _archived(stamp, already_there=True)
        temporary = place.parent / f"{IMPORTED}{stamp.key}-{os.getpid()}-{time.time_ns()}"
        try:
            _unpack(temporary, stamp, stream, seen)
            now = time.time()
            use = Use(stamp.key, "", os.getpid(), stamp.created_at, now, pending=False, ready=True, parts=stamp.parts)
            unpacked = Place(store.root, temporary.name)
            unpacked.make()
            unpacked.write_use(use)
            unpacked.write_stamp(stamp)
            durable.rename(temporary, place.folder)
        finally:
            erase(temporary)
    return _archived(stamp)


def _unpack(folder: Path, stamp: Stamp, stream: _Stream, seen: Callable[[int], None]) -> None:
    made = {folder}
    for number, (name, wanted) in enumerate(sorted(stamp.files.items())):
        member = _read_header(stream, _member(number))
        if member.size != wanted.size:
            raise _DamagedError(f"{shown(name)} has {member.size} bytes, its manifest says {wanted.size}")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        made.update(parent for parent in target.parents if folder in parent.parents)
        content = _verified(stream, name, wanted, seen)
        durable.write_new(target, content, executable=bool(member.mode & 0o111))
    rest = stream.read(_TRAILING)
    if rest.strip(b"\0") or stream.read(1):
        raise _DamagedError("something follows its last file")
    folder.mkdir(parents=True, exist_ok=True)
    for each in made:
        durable.sync_folder(each)


def _verified(stream: _Stream, name: str, wanted: Stamped, seen: Callable[[int], None]) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for data in _read(stream, wanted.size):
        digest.update(data)
        seen(len(data))
        yield data
    if digest.hexdigest() != wanted.sha256:
        raise _DamagedError(
            f"{shown(name)} has SHA-256 {digest.hexdigest()[:12]}…, its manifest says {shown(wanted.sha256[:12])}…"
        )


def _read_header(stream: _Stream, name: str) -> tarfile.TarInfo:
    """Return the header of the plain file `name`, which has to come next."""
    member = tarfile.TarInfo.frombuf(b"".join(_exactly(stream, _BLOCK)), "ascii", "replace")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.name != name or member.size < 0:
        raise _DamagedError(f"{member.name!a} stands where the plain file {name} was expected")
    return member


def _read(stream: _Stream, size: int) -> Iterator[bytes]:
    """Yield a member's content, and pass over what fills its last block."""
    yield from _exactly(stream, size)
    for _ in _exactly(stream, -size % _BLOCK):
        pass


def _exactly(stream: _Stream, size: int) -> Iterator[bytes]:
    while size:
        data = stream.read(min(size, durable.CHUNK))
        if not data:
            raise _DamagedError("it ends too early")
        size -= len(data)
        yield data


def _archived(stamp: Stamp, *, already_there: bool = False) -> Archived:
    size = sum(file.size for file in stamp.files.values())
    return Archived(stamp.key, len(stamp.files), size, already_there)
