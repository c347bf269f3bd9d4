"""Where a specialisation's machine code comes from: the prebuilt folder, else the first-use cache."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sm70_kernels.build import first_use, manifest
from sm70_kernels.errors import KernelError, missing
from sm70_kernels.registry import CSRC, build_key

if TYPE_CHECKING:
    from sm70_kernels.registry import Specialisation


def prebuilt_folder() -> Path:
    """Return where ahead-of-time kernels are: `SM70_KERNELS_DIR`, else `build/kernels` of this checkout."""
    configured = os.environ.get("SM70_KERNELS_DIR")
    return Path(configured) if configured else CSRC.parent.parent / "build" / "kernels"


@cache
def prebuilt(folder: Path) -> manifest.Manifest | None:
    """Return the manifest of `folder`, None when there is none. Raises ValueError when it is damaged."""
    try:
        return manifest.parse((folder / manifest.FILE_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def load(spec: Specialisation, form: manifest.Form) -> bytes:
    """Return the checked machine code of `spec`.

    A prebuilt file that is missing or damaged is refused. A specialisation that was not built ahead, or was built from
    other sources than this tree's, is compiled here. Raises KernelError.
    """
    folder = prebuilt_folder()
    try:
        built = prebuilt(folder)
    except (ValueError, OSError) as error:
        raise missing(
            spec.kernel.name, f"{folder / manifest.FILE_NAME} is damaged ({error}): `make kernels`"
        ) from error
    entry = built.kernels.get(spec.name) if built else None
    if built and entry and entry.key == build_key(spec, built.compiler):
        return manifest.read_form(folder, spec.name, entry, form)
    try:
        return first_use.obtain(spec, form)
    except KernelError as error:
        if error.reason != "compiler_missing":
            raise
        found = "was built from other sources" if entry else "is not there"
        text = f"{spec.name} {found} in {folder}, and cannot be compiled here: {error}; `make kernels` builds it"
        raise missing(spec.kernel.name, text) from error
