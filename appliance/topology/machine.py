"""A machine as the appliance sees it: its GPUs, the links between them, and the host around them.

Sources: NVML on a live machine, a recorded JSON file, or the text that people paste (`nvidia-smi topo -m`).
A value that a source cannot give is None, and whoever needs it says so.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

LinkKind = Literal["self", "nvlink", "pix", "pxb", "phb", "node", "sys", "unknown"]
"""NVLink, else the PCIe path in nvidia-smi's terms: PIX one switch, PXB several, PHB the host bridge,
NODE across bridges of one NUMA node, SYS across NUMA nodes."""

PCIE_PATHS: tuple[LinkKind, ...] = ("pix", "pxb", "phb", "node", "sys")


@dataclass(frozen=True)
class Link:
    """How one GPU reaches another.

    `nvlinks` counts bonded NVLinks (0 for PCIe), `nvlink_version` is NVML's (2 on V100).
    `peer_access` is the driver's answer to a peer read, None where the source does not tell.
    """

    kind: LinkKind
    nvlinks: int = 0
    nvlink_version: int | None = None
    peer_access: bool | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory_bytes` is the total that the driver reports; `capability` is (major, minor)."""

    index: int
    name: str
    capability: tuple[int, int] | None
    memory_bytes: int | None
    uuid: str | None = None
    mig: bool | None = None
    ecc: bool | None = None
    compute_mode: str | None = None
    numa_node: int | None = None

    @property
    def is_volta(self) -> bool:
        """Whether the sm_70 cubins load on it."""
        return self.capability == (7, 0)


@dataclass(frozen=True)
class Host:
    """What surrounds the GPUs. All sizes in bytes; `cgroup_memory_bytes` is None where no limit is set."""

    cpus: int | None = None
    memory_bytes: int | None = None
    cgroup_memory_bytes: int | None = None
    shm_bytes: int | None = None


@dataclass(frozen=True)
class Machine:
    """GPUs in index order, and `links[i][j]` from GPU i to GPU j (kind `self` on the diagonal)."""

    name: str
    source: str
    gpus: tuple[Gpu, ...] = ()
    links: tuple[tuple[Link, ...], ...] = ()
    driver: str | None = None
    host: Host = field(default_factory=Host)
    notes: tuple[str, ...] = ()
    """What the source could not tell, or what went wrong while asking, each in one line."""

    def to_json(self) -> dict[str, Any]:
        """The recorded form, with `schema` 1; `appliance.topology.recorded` reads it back."""
        return {"schema": 1, **asdict(self)}


def machine_of(record: dict[str, Any]) -> Machine:
    """Return the machine of `Machine.to_json`, as a plan holds it. `recorded` checks what people give."""
    gpus = tuple(Gpu(**{**gpu, "capability": gpu["capability"] and tuple(gpu["capability"])}) for gpu in record["gpus"])
    links = tuple(tuple(Link(**link) for link in row) for row in record["links"])
    return Machine(
        record["name"], record["source"], gpus, links, record["driver"], Host(**record["host"]), tuple(record["notes"])
    )
