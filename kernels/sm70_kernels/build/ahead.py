"""Build every registered specialisation into one folder: in parallel, only what changed, whole or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from sm70_kernels.build import manifest
from sm70_kernels.build.compiler import compile_specialisation, compiler_version
from sm70_kernels.registry import build_key, source_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm70_kernels.registry import Specialisation


def build(
    specs: Sequence[Specialisation], out: Path, jobs: int, report: Callable[[int, int, str], None]
) -> tuple[manifest.Manifest, int]:
    """Bring `out` to exactly `specs`: NAME.cubin and NAME.ptx for each, and the manifest, which is written last.

    `report(done, total, name)` is called for each specialisation that had to be compiled. Returns the manifest and how
    many that were. Raises KernelError for the first one that fails; what was built by then is kept for the next run.
    OSError when the folder cannot be written.
    """
    compiler = compiler_version()
    out.mkdir(parents=True, exist_ok=True)
    keys = {spec.name: build_key(spec, compiler) for spec in specs}
    earlier = _earlier(out)
    known = {name: entry for name, entry in earlier.items() if keys.get(name) == entry.key}
    entries = {name: known[name] for name in manifest.intact(out, known.items())}
    work = [spec for spec in specs if spec.name not in entries]
    try:
        # Threads are enough: the compiler runs outside the interpreter's lock.
        with ThreadPoolExecutor(jobs) as pool:
            running = {pool.submit(_build_one, spec, out, compiler): spec for spec in work}
            try:
                for done, future in enumerate(as_completed(running), start=1):
                    entries[running[future].name] = future.result()
                    report(done, len(work), running[future].name)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        # A failed run leaves a true manifest of less, so that the next one starts where it stopped.
        result = manifest.Manifest(compiler, source_hash(), entries)
        write_whole(out / manifest.FILE_NAME, manifest.dump(result).encode())
    wanted = {f"{name}.{form}" for name in entries for form in manifest.FORMS}
    for path in [*out.glob("*.cubin"), *out.glob("*.ptx")]:
        if path.name not in wanted:
            path.unlink()
    return result, len(work)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new and nothing between."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            # NamedTemporaryFile makes files for its owner alone; another user's process is to load these.
            os.fchmod(file.fileno(), 0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _build_one(spec: Specialisation, out: Path, compiler: str) -> manifest.Entry:
    compiled = compile_specialisation(spec)
    write_whole(out / f"{spec.name}.cubin", compiled.cubin)
    write_whole(out / f"{spec.name}.ptx", compiled.ptx)
    return manifest.describe(spec, compiled, compiler)


def _earlier(out: Path) -> dict[str, manifest.Entry]:
    """Return what an earlier run recorded; a damaged record only means building anew."""
    try:
        return dict(manifest.parse((out / manifest.FILE_NAME).read_text(encoding="utf-8")).kernels)
    except (OSError, ValueError):
        return {}
