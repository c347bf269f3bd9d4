"""Whether the image holds every registered SM70 kernel, built from the sources beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.errors import CheckError
from sm70_kernels.build import manifest, store
from sm70_kernels.errors import KernelError
from sm70_kernels.registry import build_key, registered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sm70_kernels.registry import Specialisation

TODO = "build the kernels again: python -m sm70_kernels.build"


def folder() -> Path:
    """Return where the launcher looks for prebuilt kernels."""
    return store.prebuilt_folder()


def complete(built: Path, wanted: Sequence[Specialisation] | None = None) -> str:
    """Say that each specialisation is there with its hash, from these sources, without spills. Raises CheckError."""
    wanted = registered() if wanted is None else wanted
    try:
        record = manifest.parse((built / manifest.FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckError(f"{built / manifest.FILE_NAME} cannot be read ({error}); {TODO}") from error
    for spec in wanted:
        entry = record.kernels.get(spec.name)
        if entry is None:
            raise CheckError(
                f"kernel {spec.name} is not in {built}; wanted all {len(wanted)} that are registered; {TODO}"
            )
        if entry.key != build_key(spec, record.compiler):
            raise CheckError(f"kernel {spec.name} was built from other sources than those beside it; {TODO}")
        spilt = entry.spill_stores + entry.spill_loads + entry.local_memory
        if spilt:
            raise CheckError(f"kernel {spec.name} spills or keeps {spilt} bytes in local memory; wanted 0; {TODO}")
        for form in manifest.FORMS:
            try:
                manifest.read_form(built, spec.name, entry, form)
            except KernelError as error:
                raise CheckError(str(error)) from error
    return f"{len(wanted)} registered kernels with their hashes, by {record.compiler}, none spills"
