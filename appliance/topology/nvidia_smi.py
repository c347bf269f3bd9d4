"""What people paste: the matrix of `nvidia-smi topo -m`, and the XML of `nvidia-smi -q -x`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Any
from xml.parsers import expat

from appliance.errors import ConfigurationError
from appliance.topology.machine import Gpu, Link, LinkKind

_PCIE: dict[str, LinkKind] = {"PIX": "pix", "PXB": "pxb", "PHB": "phb", "NODE": "node", "SYS": "sys", "SOC": "sys"}
"""nvidia-smi's words. SOC is what drivers before 384 wrote for SYS."""

_UNDERLINE = re.compile(r"\x1b?\[[0-9;]*m")
"""nvidia-smi underlines the header even in a pipe; a paste may keep the sequence and lose its escape character."""

_GPU_NAME = re.compile(r"GPU[0-9]{1,3}")

_HEADER_WORD = re.compile(r"GPU\d+|NIC\d+|CPU|.*[a-z].*")
"""A header goes on with a device (network cards have lower-case names, such as mlx5_0) or with "CPU Affinity"; a row
with a link, which is upper case."""


@dataclass(frozen=True)
class Matrix:
    """The table of `nvidia-smi topo -m`: `links[i][j]` from GPU `indices[i]` to GPU `indices[j]`."""

    indices: tuple[int, ...]
    links: tuple[tuple[Link, ...], ...]
    numa_nodes: tuple[int | None, ...]


@dataclass(frozen=True)
class Query:
    """What `nvidia-smi -q -x` tells, its GPUs in nvidia-smi's order."""

    driver: str | None
    gpus: tuple[Gpu, ...]


def parse_matrix(text: str, where: str) -> Matrix | None:
    """Return the first GPU matrix in `text`, or None when it holds none.

    Prompts, escape sequences, the bars of a Markdown table, NIC rows and columns, affinities and the legend around it
    are passed over. Raises ConfigurationError, its text beginning with `where`, for a matrix that is incomplete or
    contradicts itself.
    """
    header, rows = _table(text)
    devices = header[: header.index("CPU")] if "CPU" in header else header
    columns = [column for column, word in enumerate(devices) if _GPU_NAME.fullmatch(word)]
    indices = [_number(devices[column]) for column in columns]
    if not indices:
        return None
    if indices != sorted(set(indices)):
        raise ConfigurationError(f"{where}: the header of the GPU matrix names a GPU twice or out of order")
    links = []
    for index in indices:
        row = rows.get(index, [])
        if len(row) <= columns[-1]:
            fault = "is cut short" if row else "is missing"
            raise ConfigurationError(f"{where}: the row of GPU{index} {fault}; give the whole table")
        cells = [row[column] for column in columns]
        links.append(tuple(_link(cell, index, other, where) for cell, other in zip(cells, indices, strict=True)))
    for i, j in combinations(range(len(indices)), 2):
        if links[i][j] != links[j][i]:
            raise ConfigurationError(
                f"{where}: GPU{indices[i]} to GPU{indices[j]} and back are not the same link; give the table unedited"
            )
    numa = tuple(_numa(header, rows[index][len(devices) :]) for index in indices)
    return Matrix(tuple(indices), tuple(links), numa)


def _table(text: str) -> tuple[list[str], dict[int, list[str]]]:
    """Return the words of the first table's header, and of each GPU's row behind its name."""
    header: list[str] = []
    rows: dict[int, list[str]] = {}
    for line in _UNDERLINE.sub("", text).splitlines():
        words = _words(line.lstrip("> \t"))  # ">" quotes a paste in a mail or an issue
        if not words or not _GPU_NAME.fullmatch(words[0]):
            continue
        if len(words) == 1 or _HEADER_WORD.fullmatch(words[1]):
            if rows:
                break
            header = words
        elif header:
            rows.setdefault(_number(words[0]), words[1:])
    return header, rows


def _words(line: str) -> list[str]:
    """Return the words of a line; of a Markdown table's, those of its cells, from the first that names a GPU."""
    if "|" not in line:
        return line.split()
    words = [word.strip("*`_") for cell in line.split("|") for word in cell.split()]
    named = [cell.strip(" *`_\t") for cell in line.strip().strip("|").split("|")]
    # The corner above the rows' names may hold a word of the writer's.
    corner = len(named) > 1 and not _GPU_NAME.fullmatch(named[0]) and bool(_GPU_NAME.fullmatch(named[1]))
    return words[len(named[0].split()) :] if corner else words


def _number(word: str) -> int:
    return int(word[len("GPU") :])


def _link(word: str, index: int, other: int, where: str) -> Link:
    if (word == "X") != (index == other):
        raise ConfigurationError(f'{where}: "{word}" from GPU{index} to GPU{other}: the columns do not fit the rows')
    if word == "X":
        return Link("self")
    if word in _PCIE:
        return Link(_PCIE[word])
    if re.fullmatch(r"NV[1-9]\d?", word):
        return Link("nvlink", nvlinks=int(word[2:]))
    raise ConfigurationError(
        f'{where}: "{word}" from GPU{index} to GPU{other}; the table of `nvidia-smi topo -m` is wanted, whose links '
        f"are NV1, NV2 … and {', '.join(_PCIE)}"
    )


def _numa(header: list[str], rest: list[str]) -> int | None:
    """The column "NUMA Affinity" behind "CPU Affinity"; a range of nodes, or an empty CPU column, tells none."""
    if "NUMA" in header and len(rest) > 1 and re.fullmatch("[0-9]{1,4}", rest[1]):
        return int(rest[1])
    return None


def parse_query(data: bytes, where: str) -> Query:
    """Read the XML of `nvidia-smi -q -x`; text that a terminal put before it is passed over.

    Its DOCTYPE names a DTD file, which is never fetched, and a document that declares entities is refused. Raises
    ConfigurationError, its text beginning with `where`.
    """
    begin = re.search(rb"<\?xml|<!DOCTYPE|<nvidia_smi_log", data)
    if begin is None:
        raise ConfigurationError(f"{where}: not the XML of `nvidia-smi -q -x`")
    log = _Log(where)
    try:
        log.parser.Parse(data[begin.start() :], True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        # LookupError and ValueError: an encoding that Python does not know or expat cannot take.
        raise ConfigurationError(f"{where}: not the XML of `nvidia-smi -q -x`: {error}") from None
    gpus = tuple(_gpu(index, values) for index, values in enumerate(log.gpus))
    return Query(_value(log.head, "driver_version"), gpus)


class _Log:
    """Keeps each GPU's leaf texts by their path below `<gpu>`, for example `fb_memory_usage/total`."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.head: dict[str, str] = {}
        self.gpus: list[dict[str, str]] = []
        self.path: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.EntityDeclHandler = self._entity
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text

    def _entity(self, name: str, *_: Any) -> None:  # noqa: ANN401 - expat's further arguments are of no use here
        raise ConfigurationError(f'{self.where}: declares the entity "{name}"; nvidia-smi never does')

    def _start(self, tag: str, _: dict[str, str]) -> None:
        self.path.append(tag)
        if len(self.path) == 1 and tag != "nvidia_smi_log":
            raise ConfigurationError(f"{self.where}: <{tag}> is not the XML of `nvidia-smi -q -x`")
        if self.path == ["nvidia_smi_log", "gpu"]:
            self.gpus.append({})

    def _end(self, _: str) -> None:
        self.path.pop()

    def _text(self, text: str) -> None:
        if text.strip():
            inside = self.path[1:2] == ["gpu"]
            values, path = (self.gpus[-1], self.path[2:]) if inside else (self.head, self.path[1:])
            values.setdefault("/".join(path), text.strip())


def _gpu(index: int, values: dict[str, str]) -> Gpu:
    name = _value(values, "product_name") or "unknown"
    return Gpu(
        index=index,
        name=name,
        capability=capability_of(name, _value(values, "product_architecture")),
        memory_bytes=_bytes(_value(values, "fb_memory_usage/total")),
        uuid=_value(values, "uuid"),
        mig=_enabled(_value(values, "mig_mode/current_mig")),
        ecc=_enabled(_value(values, "ecc_mode/current_ecc")),
        compute_mode=_value(values, "compute_mode"),
    )


def _value(values: dict[str, str], path: str) -> str | None:
    """A card without the value says N/A, and one that is ill says so in the value's place."""
    text = values.get(path)
    ill = ("N/A", "[N/A]", "ERR!", "Unknown Error", "[Unknown Error]", "GPU is lost", "[GPU is lost]")
    return None if text in ill else text


def _bytes(text: str | None) -> int | None:
    found = re.fullmatch(r"([0-9]{1,9}) MiB", text or "")
    return int(found[1]) * 2**20 if found else None


def _enabled(text: str | None) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text or "")


_CAPABILITY_BY_ARCHITECTURE = {"Volta": (7, 0), "Turing": (7, 5), "Ada Lovelace": (8, 9), "Hopper": (9, 0)}
"""Architectures whose cards under nvidia-smi all have one compute capability."""

_CAPABILITY_BY_MODEL = {
    **dict.fromkeys(("P100",), (6, 0)),
    **dict.fromkeys(("P4", "P40"), (6, 1)),
    **dict.fromkeys(("V100", "V100S", "GV100"), (7, 0)),
    **dict.fromkeys(("T4", "T4G"), (7, 5)),
    **dict.fromkeys(("A100", "A800", "A30"), (8, 0)),
    **dict.fromkeys(("A2", "A10", "A10G", "A16", "A40"), (8, 6)),
    **dict.fromkeys(("L4", "L20", "L40", "L40S"), (8, 9)),
    **dict.fromkeys(("H20", "H100", "H200", "H800", "GH200"), (9, 0)),
    **dict.fromkeys(("B200", "GB200"), (10, 0)),
}
"""Model words in NVIDIA's list of CUDA GPUs (developer.nvidia.com/cuda-gpus and /cuda-legacy-gpus)."""


def capability_of(name: str, architecture: str | None = None) -> tuple[int, int] | None:
    """Return the compute capability, which `nvidia-smi -q -x` does not print, or None for a card not known here."""
    if architecture in _CAPABILITY_BY_ARCHITECTURE:
        return _CAPABILITY_BY_ARCHITECTURE[architecture]
    if "TITAN V" in name.upper():
        return (7, 0)
    known = (_CAPABILITY_BY_MODEL[word] for word in re.split(r"[^A-Za-z0-9]+", name) if word in _CAPABILITY_BY_MODEL)
    return next(known, None)
