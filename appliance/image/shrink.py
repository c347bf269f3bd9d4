"""`python -m appliance.image.shrink --gpu 70 FOLDER`: keep the device code of one GPU in every library of a folder.

CUDA's libraries hold the same code for up to eight GPUs. Each container keeps what that GPU needs, at the address where
it was; the pages that are free then leave the file. Host code and addresses stay as they are.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.errors import ApplianceError, CheckError
from appliance.image import elf, fatbin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SMALLEST_HOLE = 4 * elf.PAGE
"""Bytes below which a hole stays: each one costs a program header and a mapping (chosen)."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What became of one library (sizes in bytes)."""

    path: Path
    before: int
    after: int


def shrunk(data: bytes, gpu: int) -> bytes:
    """Return the library with the device code of `gpu` alone; `data` itself when it holds none.

    Raises elf.NotAnElf, and CheckError for device code in an unknown form.
    """
    found = [
        section for section in elf.sections(data) if section.name in fatbin.SECTIONS and section.kind != elf.NOBITS
    ]
    every = [each for section in found for each in fatbin.containers(data, section.offset, section.size)]
    placeholder = fatbin.placeholder(every, gpu)
    out = bytearray(data)
    free: list[elf.Range] = []
    for container in every:
        kept = fatbin.reduced(data, container, fatbin.needed(container, gpu) or placeholder)
        end = container.start + len(kept)
        out[container.start : container.end] = kept + bytes(container.end - end)
        free.append((end, container.end))
    holes = list(_whole_pages(free))
    return elf.without(bytes(out), holes) if holes else bytes(out)


def _whole_pages(free: Sequence[elf.Range]) -> Iterator[elf.Range]:
    for start, end in sorted(free):
        first, last = -(-start // elf.PAGE) * elf.PAGE, end // elf.PAGE * elf.PAGE
        if last - first >= SMALLEST_HOLE:
            yield first, last


def shrink(path: Path, gpu: int) -> Shrunk | None:
    """Shrink one library in place; None when it is none, or holds no device code. Raises CheckError and OSError."""
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
    data = path.read_bytes()
    try:
        result = shrunk(data, gpu)
    except elf.NotAnElf:
        return None
    except CheckError as error:
        raise CheckError(f"{path.name}: {error}") from error
    if len(result) == len(data):
        return None
    # A new file: the old one may have other names, in a package cache.
    new = path.with_name(path.name + ".new")
    new.write_bytes(result)
    shutil.copymode(path, new)
    new.replace(path)
    return Shrunk(path, len(data), len(result))


def libraries(folder: Path) -> Iterator[Path]:
    """Yield the shared libraries below `folder`, by path."""
    for path in sorted(folder.rglob("*.so*")):
        if path.is_file() and not path.is_symlink():
            yield path


def main(argv: Sequence[str] | None = None) -> int:
    """Shrink every library of a folder and say what that gave. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m appliance.image.shrink", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", type=int, required=True, help="70 for sm_70; 0 for a machine without any GPU")
    arguments = parser.parse_args(argv)
    done = []
    try:
        for path in libraries(arguments.folder):
            if found := shrink(path, arguments.gpu):
                done.append(found)
                print(f"{found.before / 1e6:8.1f} → {found.after / 1e6:6.1f} MB  {found.path.name}")
    except ApplianceError as error:
        print(f"shrink: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"shrink: {error.filename} cannot be rewritten ({error.strerror}); wanted it in place", file=sys.stderr)
        return 1
    before, after = sum(each.before for each in done), sum(each.after for each in done)
    print(f"{before / 1e6:8.1f} → {after / 1e6:6.1f} MB  in {len(done)} libraries")
    return 0


if __name__ == "__main__":
    sys.exit(main())
