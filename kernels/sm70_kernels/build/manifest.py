"""The record beside prebuilt kernels: what each file is, what it hashes to, and what it takes of the machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from sm70_kernels.build.occupancy import Occupancy, occupancy
from sm70_kernels.errors import missing
from sm70_kernels.registry import FLAGS, build_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from sm70_kernels.build.compiler import Compiled
    from sm70_kernels.registry import Specialisation

SCHEMA = 1
FILE_NAME = "manifest.json"

Form = Literal["cubin", "ptx"]
"""`cubin` runs on SM70 alone; `ptx` is compiled by the driver of anything newer."""

FORMS: tuple[Form, ...] = get_args(Form)


@dataclass(frozen=True, slots=True)
class Entry:
    """One specialisation as it was built. `key` is `registry.build_key`, `sha256` is by form."""

    kernel: str
    entry: str
    source: str
    params: str
    constants: dict[str, int]
    threads: int
    dynamic_shared: int
    key: str
    sha256: dict[str, str]
    registers: int
    static_shared: int
    local_memory: int
    spill_stores: int
    spill_loads: int
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class Manifest:
    """All entries of a folder by specialisation name, with what they were built from and by."""

    compiler: str
    source_hash: str
    kernels: Mapping[str, Entry]


def describe(spec: Specialisation, compiled: Compiled, compiler: str) -> Entry:
    """Return the manifest's entry for a specialisation that was just compiled."""
    resources = compiled.resources
    shared = resources.static_shared + spec.shared_bytes
    return Entry(
        kernel=spec.kernel.name,
        entry=spec.kernel.entry,
        source=spec.kernel.source,
        params=spec.kernel.params,
        constants=dict(spec.constants),
        threads=spec.threads,
        dynamic_shared=spec.shared_bytes,
        key=build_key(spec, compiler),
        sha256={"cubin": digest(compiled.cubin), "ptx": digest(compiled.ptx)},
        occupancy=occupancy(spec.threads, resources.registers, shared),
        **asdict(resources),
    )


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def dump(manifest: Manifest) -> str:
    """Return the manifest as JSON text, the same text for the same content."""
    record = {
        "schema": SCHEMA,
        "compiler": manifest.compiler,
        "flags": list(FLAGS),
        "source_hash": manifest.source_hash,
        "kernels": {name: asdict(entry) for name, entry in sorted(manifest.kernels.items())},
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def parse(text: str) -> Manifest:
    """Return the manifest that `dump` wrote. Raises ValueError, its text saying what is wrong."""
    try:
        record: dict[str, Any] = json.loads(text)
        if record["schema"] != SCHEMA:
            raise ValueError(f"schema {record['schema']}, where this version reads {SCHEMA}")
        kernels = {
            name: Entry(**{**entry, "occupancy": Occupancy(**entry["occupancy"])})
            for name, entry in record["kernels"].items()
        }
        return Manifest(record["compiler"], record["source_hash"], kernels)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a kernel manifest ({type(error).__name__}: {error})") from error


def read_form(folder: Path, name: str, entry: Entry, form: Form) -> bytes:
    """Return the bytes of one built file, checked. Raises KernelError when it is missing or has another hash."""
    path = folder / f"{name}.{form}"
    try:
        data = path.read_bytes()
    except OSError as error:
        text = f"{path} cannot be read ({error.strerror}); build the kernels again: `make kernels`"
        raise missing(entry.kernel, text) from error
    if digest(data) != entry.sha256[form]:
        text = (
            f"{path} has SHA-256 {digest(data)[:12]}…, not {entry.sha256[form][:12]}… as its manifest says; "
            "build the kernels again: `make kernels`"
        )
        raise missing(entry.kernel, text)
    return data


def intact(folder: Path, entries: Iterable[tuple[str, Entry]]) -> set[str]:
    """Return the names of those entries whose two files are there with the right hashes."""

    def good(name: str, entry: Entry) -> bool:
        try:
            return all(digest((folder / f"{name}.{form}").read_bytes()) == entry.sha256[form] for form in FORMS)
        except OSError:
            return False

    return {name for name, entry in entries if good(name, entry)}
