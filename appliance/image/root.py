"""What must not be anywhere in an image's file system. Reads."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from appliance.errors import CheckError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NOT_OURS = ("proc", "sys", "dev")


def _files(tree: Path) -> Iterator[Path]:
    for top in sorted(tree.iterdir()):
        if top.name in _NOT_OURS or top.is_symlink():
            continue
        if top.is_file():
            yield top
        for folder, _, names in os.walk(top):
            for name in names:
                yield top.__class__(folder, name)


def no_privileged_files(tree: Path) -> str:
    """Say that no file gives its user or group to whoever runs it. Raises CheckError naming one."""
    count = 0
    for path in _files(tree):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            raise CheckError(f"{path} has mode {stat.S_IMODE(mode):o}; wanted no setuid or setgid file; chmod ug-s it")
        count += 1
    return f"no setuid or setgid file among {count}"


def for_every_user(folder: Path) -> str:
    """Say that every user can read what is in `folder`, be it a container's user or any other. Raises CheckError."""
    count = 0
    for path in (folder, *sorted(folder.rglob("*"))):
        mode = path.lstat().st_mode
        wanted = 0 if stat.S_ISLNK(mode) else 0o005 if stat.S_ISDIR(mode) else 0o004
        if mode & wanted != wanted:
            raise CheckError(
                f"{path} has mode {stat.S_IMODE(mode):o}; wanted it readable for every user; chmod a+rX it"
            )
        count += 1
    return f"{count} files and folders, which every user can read"


def no_driver(tree: Path) -> str:
    """Say that no driver library is in the image: one would come before the host's and stop with error 803.

    Raises CheckError naming it, or a line of the loader's configuration that points to cuda-compat.
    """
    for path in _files(tree):
        if path.name.startswith("libcuda.so"):
            raise CheckError(f"{path} is a driver library; wanted the host's alone; leave cuda-compat out")
    configuration = tree / "etc" / "ld.so.conf.d"
    for path in sorted(configuration.glob("*.conf")) if configuration.is_dir() else []:
        if "compat" in path.read_text(encoding="utf-8"):
            raise CheckError(f"{path} names a compat folder; wanted the host's driver alone; leave cuda-compat out")
    return "no CUDA driver of its own"
