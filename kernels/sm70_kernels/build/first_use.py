"""Compile a specialisation on its first use, once for a machine: one file in a cache folder, replaced whole."""

from __future__ import annotations

import io
import logging
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm70_kernels.build import manifest
from sm70_kernels.build.ahead import write_whole
from sm70_kernels.build.compiler import compile_specialisation, compiler_version
from sm70_kernels.registry import build_key

if TYPE_CHECKING:
    from sm70_kernels.registry import Specialisation

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return where first-use kernels are kept: `SM70_KERNELS_CACHE`, else a folder below the user's cache."""
    if configured := os.environ.get("SM70_KERNELS_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sm70_kernels"


def obtain(spec: Specialisation, form: manifest.Form) -> bytes:
    """Return the machine code of `spec` from the cache, compiling it when it is not there or damaged.

    Any number of processes may do so at once: each writes a file of its own and renames it, the bytes are the same
    whoever wins, and each goes on with the bytes in its hands. Raises KernelError when it does not compile.
    """
    compiler = compiler_version()
    path = cache_folder() / f"{spec.name}-{build_key(spec, compiler)[:16]}.zip"
    try:
        return _read(path, spec, form)
    except FileNotFoundError:
        log.info("compiling %s for its first use", spec.name)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        log.warning("%s is damaged (%s): compiling %s again", path, error, spec.name)
    compiled = compile_specialisation(spec)
    entry = manifest.describe(spec, compiled, compiler)
    files: dict[manifest.Form, bytes] = {"cubin": compiled.cubin, "ptx": compiled.ptx}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, _pack(spec.name, manifest.Manifest(compiler, entry.key, {spec.name: entry}), files))
    except OSError as error:
        # Serving goes on: the next process compiles again.
        log.warning("cannot keep %s in %s (%s): set SM70_KERNELS_CACHE", spec.name, path.parent, error.strerror)
    return files[form]


def _pack(name: str, record: manifest.Manifest, files: dict[manifest.Form, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(manifest.FILE_NAME), manifest.dump(record))
        for form, data in files.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.{form}"), data)
    return buffer.getvalue()


def _read(path: Path, spec: Specialisation, form: manifest.Form) -> bytes:
    with zipfile.ZipFile(path) as archive:
        record = manifest.parse(archive.read(manifest.FILE_NAME).decode())
        data = archive.read(f"{spec.name}.{form}")
    if manifest.digest(data) != record.kernels[spec.name].sha256[form]:
        raise ValueError("its content has another SHA-256 than it says")
    return data
