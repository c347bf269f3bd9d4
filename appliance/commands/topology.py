"""`appliance topology`: the GPUs of a machine, how they are wired, and which four belong together."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.errors import ConfigurationError
from appliance.topology import islands, live, recorded

if TYPE_CHECKING:
    import argparse

    from appliance.topology.machine import Gpu, Link, Machine

SUMMARY = "Show the GPUs of this machine, or of a recorded one, and how they are wired."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="a recorded machine: a JSON file (see config/topologies/) or the text of `nvidia-smi topo -m`; "
        "this machine when left out",
    )
    parser.add_argument(
        "--smi-xml",
        type=Path,
        metavar="FILE",
        help="the output of `nvidia-smi -q -x` that goes with that text; the file beside it with the suffix .xml "
        "when left out",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, which --topology reads as well")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the machine as a recording")


def run(arguments: argparse.Namespace) -> int:
    """Print the machine, and record it where asked. Returns 0; a machine without GPUs is an answer too."""
    if arguments.topology is None and arguments.smi_xml is not None:
        raise ConfigurationError("--smi-xml goes with --topology FILE, the text of `nvidia-smi topo -m`")
    machine = live.detect() if arguments.topology is None else recorded.load(arguments.topology, arguments.smi_xml)
    if arguments.save is not None:
        recorded.save(machine, arguments.save)
    print(recorded.layout(to_json(machine)) if arguments.json else "\n".join(to_text(machine)))
    return 0


def to_json(machine: Machine) -> dict[str, Any]:
    """Return the recorded form and, under `derived`, what follows from it."""
    derived = {
        "full_mesh": islands.is_full_mesh(machine),
        "nvlink_islands": islands.nvlink_islands(machine),
        "peer_islands": islands.peer_islands(machine),
        "best_set_of_four": asdict(islands.best_set(machine, 4)),
        "description": islands.describe(machine),
    }
    return {**machine.to_json(), "derived": derived}


def to_text(machine: Machine) -> list[str]:
    """Return the lines that a person reads."""
    lines = [f"{machine.name} ({machine.source}), driver {machine.driver or 'unknown'}", ""]
    if machine.gpus:
        head = ["GPU", "name", "capability", "memory", "MIG", "ECC", "compute mode", "NUMA node"]
        lines += [*_table([head, *map(_gpu_row, machine.gpus)]), ""]
    if len(machine.gpus) > 1:
        names = [f"GPU{gpu.index}" for gpu in machine.gpus]
        rows = [[name, *map(_word, row)] for name, row in zip(names, machine.links, strict=True)]
        lines += [*_table([["", *names], *rows]), ""]
    lines += [*islands.describe(machine), _host_line(machine)]
    return lines + [f"Note: {note}" for note in machine.notes]


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _gpu_row(gpu: Gpu) -> list[str]:
    def state(on: bool | None) -> str:
        return "-" if on is None else "on" if on else "off"

    return [
        str(gpu.index),
        gpu.name,
        "-" if gpu.capability is None else "{}.{}".format(*gpu.capability),
        _size(gpu.memory_bytes, "-"),
        state(gpu.mig),
        state(gpu.ecc),
        gpu.compute_mode or "-",
        "-" if gpu.numa_node is None else str(gpu.numa_node),
    ]


def _word(link: Link) -> str:
    """The link in nvidia-smi's words."""
    if link.kind == "nvlink":
        return f"NV{link.nvlinks}"
    return {"self": "X", "unknown": "?"}.get(link.kind, link.kind.upper())


def _host_line(machine: Machine) -> str:
    host = machine.host
    cpus = "CPUs unknown" if host.cpus is None else f"{host.cpus} CPU{'' if host.cpus == 1 else 's'}"
    limit = "" if host.cgroup_memory_bytes is None else f" (limited to {_size(host.cgroup_memory_bytes, '')})"
    return f"Host: {cpus}, memory {_size(host.memory_bytes)}{limit}, /dev/shm {_size(host.shm_bytes)}."


def _size(size: int | None, otherwise: str = "unknown") -> str:
    return otherwise if size is None else f"{size / 2**30:.1f} GiB"
