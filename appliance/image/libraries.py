"""Whether the libraries of the V100 image still have all their Volta code, as cuobjdump lists it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING

from appliance.doctor.checks.libraries import NOT_FOR_VOLTA
from appliance.errors import CheckError
from appliance.image import elf, fatbin
from appliance.paths import CONFIG

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TABLE = CONFIG / "image" / "device-code.json"

_CUBIN = re.compile(r"\.sm_70\.cubin\s*$", re.MULTILINE)
_LIMIT = 120.0
"""Seconds that listing one library may take (the largest takes two)."""


def table() -> dict[str, int]:
    """Return how many sm_70 cubins each library holds as it is published, by its path below site-packages."""
    return {str(name): int(count) for name, count in json.loads(TABLE.read_text(encoding="utf-8"))["cubins"].items()}


def reader(site: Path) -> Path:
    """Return the cuobjdump that the triton wheel carries. Raises CheckError when it is not there."""
    path = site / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not os.access(path, os.X_OK):
        raise CheckError(f"{path} is not there; wanted cuobjdump of the triton wheel, to read device code with")
    return path


def complete(site: Path, wanted: Mapping[str, int], cuobjdump: Path) -> str:
    """Say that every library of the table has its sm_70 cubins. Raises CheckError for the first that has not."""
    for name, count in sorted(wanted.items()):
        path = site / name
        if not path.is_file():
            raise CheckError(f"{name} is missing; wanted it with {count} cubins for sm_70; install what the locks name")
        found = cubins(path, cuobjdump)
        if found != count:
            raise CheckError(
                f"{name} has {found} cubins for sm_70; wanted {count}, as published; unpack the locked wheel anew"
            )
    return f"{sum(wanted.values())} cubins for sm_70 in {len(wanted)} libraries, as published"


def known(site: Path, wanted: Mapping[str, int], cuobjdump: Path) -> str:
    """Say that vLLM has no extension without Volta code but those that no route of a V100 calls. Raises CheckError."""
    others = []
    for path in sorted((site / "vllm").rglob("*.so")):
        name = path.relative_to(site).as_posix()
        if name in wanted or not _has_device_code(path):
            continue
        if path.name.partition(".")[0] not in NOT_FOR_VOLTA:
            count = cubins(path, cuobjdump)
            raise CheckError(
                f"{name} has device code, {count} cubins for sm_70; wanted it in {TABLE.name}; add it there"
            )
        others.append(path.name.partition(".")[0])
    return f"not called on a V100: {', '.join(others) or 'none'}"


def cubins(path: Path, cuobjdump: Path) -> int:
    """Return how many sm_70 cubins cuobjdump lists. Raises CheckError when it cannot be asked."""
    try:
        # A library without device code gives status 255, which its empty list says as well.
        done = subprocess.run(
            [cuobjdump, "--list-elf", path], capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckError(f"cuobjdump cannot read {path.name} ({error}); wanted its list of cubins") from error
    return len(_CUBIN.findall(done.stdout))


def _has_device_code(path: Path) -> bool:
    try:
        return any(section.name in fatbin.SECTIONS for section in elf.sections(path.read_bytes()))
    except elf.NotAnElf:
        return False
