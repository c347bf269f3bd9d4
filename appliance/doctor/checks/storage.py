"""The folders that are written to: whether they can be, and whether what will be put there fits."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from appliance.doctor.check import Check, gib

if TYPE_CHECKING:
    from pathlib import Path


def folder(name: str, path: Path, trouble: OSError | None) -> Check:
    """Judge the folder of a setting. `trouble` is what writing there raises, None when it works."""
    identity, title, wanted = f"{name}_dir", f"{name} folder", "a folder that this user can write"
    if trouble is None:
        return Check(identity, title, "ok", str(path), wanted)
    variable = f"APPLIANCE_{identity.upper()}"
    todo = f"make it writable for user {os.getuid()}, or name another folder with {variable}"
    if trouble.errno in (errno.ENOSPC, errno.EDQUOT):
        todo = f"free space there, or name a folder on another volume with {variable}"
    return Check(identity, title, "fail", f"{path} cannot be written ({trouble.strerror or trouble})", wanted, todo)


def write_trouble(path: Path) -> OSError | None:
    """Make the folder where it is missing and write a byte in it; return what that raises, None when it works."""
    probe = path / f".write-test-{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            probe.unlink()
    return None


def space(place: Path, free: int | None, needed: int) -> Check:
    """Judge the free bytes on the volume of `place` against the bytes that will be put there."""
    name, title = "disk_space", "disk space"
    wanted = f"{gib(needed)} for the model and its caches" if needed else "any"
    if free is None:
        return Check(name, title, "skipped", f"{place} cannot be asked")
    found = f"{gib(free)} free in {place}"
    if free >= needed:
        return Check(name, title, "ok", found, wanted)
    todo = "free space there, or name a folder on a larger volume with APPLIANCE_MODELS_DIR"
    return Check(name, title, "fail", found, wanted, todo)


def free_bytes(place: Path) -> int | None:
    """Return the free bytes of the volume that `place` is or will be on."""
    for path in (place, *place.parents):
        try:
            return shutil.disk_usage(path).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
