"""A machine from a file: our own JSON, or the text of `nvidia-smi topo -m` with or without `nvidia-smi -q -x`."""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import MISSING, fields, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from appliance import whole_file
from appliance.errors import CheckError, ConfigurationError, nearest
from appliance.paths import TOPOLOGIES
from appliance.topology.machine import Gpu, Host, Link, LinkKind, Machine
from appliance.topology.nvidia_smi import Matrix, parse_matrix, parse_query

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Check = Callable[[Any, str], Any]

T = TypeVar("T")

_LARGEST = 16 * 2**20
"""Bytes. `nvidia-smi -q -x` of 16 GPUs with many processes stays far below; a device file would never end."""

_WIDTH = 120


def load(path: Path, smi_xml: Path | None = None) -> Machine:
    """Return the machine that `path` records: a JSON file of ours, or the text of `nvidia-smi topo -m`.

    The text leaves out names, memory and driver; they come from the XML of `nvidia-smi -q -x` in `smi_xml`, by
    default the file beside it with the suffix .xml, and without one they are unknown, as `notes` then say.
    Raises ConfigurationError for anything else, naming the key or the row that is wrong.
    """
    text = _text_of(_read(path))
    if text.lstrip().startswith("{"):
        if smi_xml is not None:
            raise ConfigurationError(
                f"{smi_xml}: XML of nvidia-smi goes with the text of `nvidia-smi topo -m`; {path} is already a whole "
                "recorded machine"
            )
        return _from_json(text, str(path))
    matrix = parse_matrix(text, str(path))
    if matrix is None:
        hint = " (this is XML: give it as --smi-xml, beside that text)" if text.lstrip().startswith("<") else ""
        raise ConfigurationError(
            f"{path}: neither a recorded machine in JSON nor the text of `nvidia-smi topo -m`{hint}; "
            "`appliance topology --save FILE` writes the one, `nvidia-smi topo -m > FILE` the other"
        )
    beside = path.with_suffix(".xml")
    if smi_xml is None and beside != path and beside.is_file():
        smi_xml = beside
    return _from_matrix(matrix, path, smi_xml)


def layout(value: object, indent: int = 0, room: int = _WIDTH) -> str:
    """Return `value` as JSON in which whatever fits on one line stands on one, so that a matrix reads as rows."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= room or not isinstance(value, dict | list | tuple) or not value:
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        items = []
        for key, item in value.items():
            name = f"{json.dumps(key, ensure_ascii=False)}: "
            items.append(f"{inner}{name}{layout(item, indent + 2, room - len(name) - 1)}")
        start, end = "{", "}"
    else:
        items = [f"{inner}{layout(item, indent + 2, room - 1)}" for item in value]
        start, end = "[", "]"
    return start + "\n" + ",\n".join(items) + "\n" + " " * indent + end


def save(machine: Machine, path: Path) -> None:
    """Write the recorded form of `machine` to `path`, whole or not at all. Raises CheckError when it cannot."""
    try:
        whole_file.write(path, layout(machine.to_json()) + "\n")
    except OSError as error:
        raise CheckError(f"cannot write {path}: {error.strerror}; name a file in a folder with room to write") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        shipped = sorted(TOPOLOGIES.glob("*.json"))
        close = next((f for f in shipped if f.stem == path.stem), None)
        hint = f'; did you mean "{close}"?' if close else nearest(str(path), map(str, shipped))
        raise ConfigurationError(f"no file {path}{hint or '; recorded machines are in ' + str(TOPOLOGIES)}") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _LARGEST:
        raise ConfigurationError(f"{path}: larger than {_LARGEST // 2**20} MiB, so no description of a machine")
    return data


def _text_of(data: bytes) -> str:
    """Decode UTF-8 and UTF-16, with a byte order mark or without: PowerShell's `>` writes UTF-16."""
    encoding = _utf16(data) or "utf-8-sig"
    return data.decode(encoding, errors="replace")


def _utf8(data: bytes) -> bytes:
    """Return XML in UTF-8 where it came in UTF-16, whatever it declares; other bytes as they are."""
    encoding = _utf16(data)
    if encoding is None:
        return data
    text = data.decode(encoding, errors="replace")
    return re.sub(r"""(<\?xml[^>]*?)\s+encoding=(["'])[^"']*\2""", r"\1", text, count=1).encode()


def _utf16(data: bytes) -> str | None:
    """Return the name of the UTF-16 that `data` is in, None for anything else."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    opening = data[:64]
    # nvidia-smi writes ASCII: in UTF-16 every other byte of it is zero.
    low, high = opening[1::2], opening[::2]
    if len(opening) >= 4 and not any(low):
        return "utf-16-le"
    return "utf-16-be" if len(opening) >= 4 and not any(high) else None


def _from_matrix(matrix: Matrix, path: Path, smi_xml: Path | None) -> Machine:
    source = "nvidia-smi topo -m"
    driver = None
    notes = []
    gpus = tuple(Gpu(index, "unknown", None, None) for index in matrix.indices)
    if smi_xml is None:
        if gpus:
            notes.append(
                "names, memory, compute capability and driver are unknown: save `nvidia-smi -q -x` as "
                f"{path.with_suffix('.xml').name} beside this file, or give it with --smi-xml"
            )
    else:
        query = parse_query(_utf8(_read(smi_xml)), str(smi_xml))
        if len(query.gpus) != len(gpus):
            raise ConfigurationError(
                f"{smi_xml} has {len(query.gpus)} GPUs and {path} has {len(gpus)}; take both from one machine"
            )
        source += " and -q -x"
        driver = query.driver
        gpus = tuple(replace(gpu, index=index) for gpu, index in zip(query.gpus, matrix.indices, strict=True))
        notes += [
            f'GPU {gpu.index}: the compute capability of "{gpu.name}" is not known here; a recording with '
            "`appliance topology --save` on that machine holds it"
            for gpu in gpus
            if gpu.capability is None
        ]
        notes += [f"GPU {gpu.index}: {smi_xml} does not tell its memory" for gpu in gpus if gpu.memory_bytes is None]
    gpus = tuple(replace(gpu, numa_node=node) for gpu, node in zip(gpus, matrix.numa_nodes, strict=True))
    notes.append("CPUs, host memory and /dev/shm are unknown: nvidia-smi does not tell them")
    return Machine(path.stem, source, gpus, matrix.links, driver, notes=tuple(notes))


def _from_json(text: str, where: str) -> Machine:
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{where}: not JSON: {error.msg} at line {error.lineno}") from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{where}: not a recorded machine: numbers too long or nested too deep") from None
    schema = record.pop("schema", None)
    if schema != 1 or isinstance(schema, bool):
        raise ConfigurationError(f"{where}: schema: {_seen(schema)}, wanted 1, the only one there is")
    # `appliance topology --json` adds what follows from the rest; it is worked out afresh.
    record.pop("derived", None)
    machine = _build(Machine, _MACHINE, record, where, "")
    _check_indices(machine, where)
    _check_links(machine, where)
    return machine


def _check_indices(machine: Machine, where: str) -> None:
    for at, (before, gpu) in enumerate(pairwise(machine.gpus), start=1):
        if gpu.index <= before.index:
            raise ConfigurationError(
                f"{where}: gpus[{at}].index: {gpu.index} after {before.index}; wanted ascending order, none twice"
            )


def _check_links(machine: Machine, where: str) -> None:
    count = len(machine.gpus)
    if [len(row) for row in machine.links] != [count] * count:
        raise ConfigurationError(f"{where}: links: wanted one row for each of {count} GPUs, each of {count} links")
    for i, j in product(range(count), repeat=2):
        link, back, key = machine.links[i][j], machine.links[j][i], f"{where}: links[{i}][{j}]"
        if (link.kind == "self") != (i == j):
            wanted = '"self"' if i == j else "a link to another GPU"
            raise ConfigurationError(f'{key}.kind: "{link.kind}", wanted {wanted}')
        if (link.kind == "nvlink") != (link.nvlinks > 0):
            raise ConfigurationError(
                f'{key}.nvlinks: {link.nvlinks} with kind "{link.kind}"; NVLink counts at least 1 and PCIe 0'
            )
        if (link.kind, link.nvlinks) != (back.kind, back.nvlinks):
            raise ConfigurationError(
                f"{key}: {link.kind} {link.nvlinks} there but {back.kind} {back.nvlinks} back in links[{j}][{i}]"
            )


def _build(cls: type[T], checks: Mapping[str, Check], value: object, where: str, key: str) -> T:
    """Make a `cls` of a JSON object. Raises ConfigurationError naming the key that is unknown, missing or wrong."""
    at = f"{where}: {key}: " if key else f"{where}: "
    prefix = f"{key}." if key else ""
    if not isinstance(value, dict):
        raise ConfigurationError(f"{at}{_seen(value)}, wanted an object")
    for name in value:
        if name not in checks:
            raise ConfigurationError(f"{at}unknown key {_seen(name)}{nearest(name, checks)}")
    for field in fields(cls):  # type: ignore[arg-type]  # only dataclasses come here
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigurationError(f'{at}the key "{field.name}" is missing')
    return cls(**{name: checks[name](item, f"{where}: {prefix}{name}") for name, item in value.items()})


def _seen(value: object) -> str:
    text = json.dumps(value)  # in ASCII: what the file holds may not be fit for a terminal
    return text if len(text) <= 60 else f"{text[:57]}..."


def _text(value: Any, key: str) -> str:  # noqa: ANN401 - what a JSON file holds
    if not isinstance(value, str) or not value.isprintable():
        raise ConfigurationError(f"{key}: {_seen(value)}, wanted a text of one line")
    return value


def _flag(value: Any, key: str) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):
        raise ConfigurationError(f"{key}: {_seen(value)}, wanted true or false")
    return value


def _count(value: Any, key: str) -> int:  # noqa: ANN401
    # bool is a kind of int in Python, not in JSON.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ConfigurationError(f"{key}: {_seen(value)}, wanted a whole number, 0 or more and below 2^63")
    return value


def _list(value: Any, key: str) -> list[Any]:  # noqa: ANN401
    if not isinstance(value, list):
        raise ConfigurationError(f"{key}: {_seen(value)}, wanted a list")
    return value


def _or_none(check: Check) -> Check:
    return lambda value, key: None if value is None else check(value, key)


def _each(check: Check) -> Check:
    def check_all(value: Any, key: str) -> tuple[Any, ...]:  # noqa: ANN401
        return tuple(check(item, f"{key}[{at}]") for at, item in enumerate(_list(value, key)))

    return check_all


def _object(cls: type, checks: Mapping[str, Check]) -> Check:
    def check(value: Any, key: str) -> Any:  # noqa: ANN401
        where, _, inner = key.rpartition(": ")
        return _build(cls, checks, value, where, inner)

    return check


def _capability(value: Any, key: str) -> tuple[int, int]:  # noqa: ANN401
    if len(_list(value, key)) != 2:
        raise ConfigurationError(f"{key}: {_seen(value)}, wanted [MAJOR, MINOR] such as [7, 0]")
    return _count(value[0], f"{key}[0]"), _count(value[1], f"{key}[1]")


def _link_kind(value: Any, key: str) -> Any:  # noqa: ANN401
    kinds = get_args(LinkKind)
    if value not in kinds:
        raise ConfigurationError(f"{key}: {_seen(value)}, wanted one of {', '.join(kinds)}")
    return value


_LINK: Mapping[str, Check] = {
    "kind": _link_kind,
    "nvlinks": _count,
    "nvlink_version": _or_none(_count),
    "peer_access": _or_none(_flag),
}
_GPU: Mapping[str, Check] = {
    "index": _count,
    "name": _text,
    "capability": _or_none(_capability),
    "memory_bytes": _or_none(_count),
    "uuid": _or_none(_text),
    "mig": _or_none(_flag),
    "ecc": _or_none(_flag),
    "compute_mode": _or_none(_text),
    "numa_node": _or_none(_count),
}
_HOST: Mapping[str, Check] = {field.name: _or_none(_count) for field in fields(Host)}
_MACHINE: Mapping[str, Check] = {
    "name": _text,
    "source": _text,
    "gpus": _each(_object(Gpu, _GPU)),
    "links": _each(_each(_object(Link, _LINK))),
    "driver": _or_none(_text),
    "host": _object(Host, _HOST),
    "notes": _each(_text),
}
