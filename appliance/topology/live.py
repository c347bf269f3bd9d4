"""This machine, asked through NVML. Nothing is changed and no GPU memory is taken; no root is needed."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from appliance.topology import host
from appliance.topology.machine import Gpu, Link, LinkKind, Machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_PCIE_PATH: dict[int, LinkKind] = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
"""nvmlGpuTopologyLevel_t. 0 is two GPUs on one card, which a switch on that card joins."""

_COMPUTE_MODE = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
"""nvmlComputeMode_t in nvidia-smi's words."""

_P2P_READ = 0
"""nvmlGpuP2PCapsIndex_t; the binding's own constant of this name is a tuple by mistake."""

_P2P_OK, _P2P_UNKNOWN = 0, 6

_NUMA_WORDS = 16
"""64-bit words of a node set: Linux's largest configuration has 1024 nodes (CONFIG_NODES_SHIFT 10)."""


class _LostError(Exception):
    """The GPU at `index` is gone, `why` in NVML's words."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index
        self.why = why


def detect(nvml: ModuleType | None = None) -> Machine:
    """Return this machine. Without a driver or with a GPU that vanishes, `notes` say so; nothing is raised.

    `nvml` is pynvml (nvidia-ml-py), or in tests a module that stands for it.
    """
    nvml = nvml or importlib.import_module("pynvml")
    around = host.read()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        note = _why_no_nvml(nvml, error)
        return Machine("this machine", "NVML", host=around, notes=(note,))
    try:
        asker = _Asker(nvml)
        gpus, links = asker.gpus_and_links()
        driver = asker.value("driver version", nvml.nvmlSystemGetDriverVersion)
        return Machine("this machine", "NVML", gpus, links, driver, around, tuple(dict.fromkeys(asker.notes)))
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


class _Asker:
    """One round of questions to NVML, and the notes on what it did not answer."""

    def __init__(self, nvml: ModuleType) -> None:
        self.nvml = nvml
        self.notes: list[str] = []
        # NOT_SUPPORTED: this card has no such value; FUNCTION_NOT_FOUND: this driver is older than the question;
        # INVALID_ARGUMENT: a link number beyond the card's. None of them is worth a note.
        self.silent = {
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
        }
        self.lost = {
            nvml.NVML_ERROR_GPU_IS_LOST,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_GPU_NOT_FOUND,
            nvml.NVML_ERROR_RESET_REQUIRED,
        }

    def value(self, what: str, question: Callable[..., Any], *args: Any, gpu: int | None = None) -> Any:  # noqa: ANN401
        """Return NVML's answer, or None when there is none. Raises _LostError when GPU `gpu` is gone."""
        try:
            return question(*args)
        except self.nvml.NVMLError as error:
            if gpu is not None and error.value in self.lost:
                raise _LostError(gpu, str(error)) from None
            if error.value not in self.silent:
                self.notes.append(f"{'NVML' if gpu is None else f'GPU {gpu}'}: {what} could not be read: {error}")
            return None

    def gpus_and_links(self) -> tuple[tuple[Gpu, ...], tuple[tuple[Link, ...], ...]]:
        """Return the GPUs that answer to the end, and their links; each other GPU has a note."""
        gpus: dict[int, Gpu] = {}
        handles: dict[int, Any] = {}
        for index in range(self.value("number of GPUs", self.nvml.nvmlDeviceGetCount) or 0):
            try:
                handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
                gpus[index] = self._gpu(index, handle)
                handles[index] = handle
            except self.nvml.NVMLError as error:
                self._note_lost(_LostError(index, str(error)), None)
            except _LostError as lost:
                self._note_lost(lost, None)
        while True:
            try:
                links = self._links(handles)
            except _LostError as lost:
                self._note_lost(lost, gpus.pop(lost.index).uuid)
                del handles[lost.index]
            else:
                break
        if not gpus and not self.notes:
            self.notes.append(
                "NVML: the driver answers but shows no GPU; in a container, hand the GPUs over (`--gpus all`, or CDI)"
            )
        return tuple(gpus.values()), links

    def _note_lost(self, lost: _LostError, uuid: str | None) -> None:
        name = f"GPU {lost.index}" + (f" ({uuid})" if uuid else "")
        self.notes.append(
            f"{name} does not answer and is left out: {lost.why} (`dmesg | grep -i xid` may tell why; a reset or a "
            "reboot brings a lost GPU back)"
        )

    def _gpu(self, index: int, handle: Any) -> Gpu:  # noqa: ANN401 - NVML's handles are opaque
        nvml = self.nvml

        def ask(what: str, question: Callable[..., Any], *more: object) -> Any:  # noqa: ANN401
            return self.value(what, question, handle, *more, gpu=index)

        memory = ask("memory", nvml.nvmlDeviceGetMemoryInfo)
        capability = ask("compute capability", nvml.nvmlDeviceGetCudaComputeCapability)
        # Pairs of current and pending; pending counts only after a reset.
        mig = ask("MIG mode", nvml.nvmlDeviceGetMigMode)
        ecc = ask("ECC mode", nvml.nvmlDeviceGetEccMode)
        mode = ask("compute mode", nvml.nvmlDeviceGetComputeMode)
        return Gpu(
            index=index,
            name=ask("name", nvml.nvmlDeviceGetName) or "unknown",
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
            memory_bytes=None if memory is None else int(memory.total),
            uuid=ask("UUID", nvml.nvmlDeviceGetUUID),
            mig=None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
            ecc=None if ecc is None else ecc[0] == nvml.NVML_FEATURE_ENABLED,
            compute_mode=None if mode is None else _COMPUTE_MODE.get(mode, f"mode {mode}"),
            numa_node=self._numa_node(ask),
        )

    def _numa_node(self, ask: Callable[..., Any]) -> int | None:
        """The one host NUMA node near the GPU. (nvmlDeviceGetNumaNodeId tells of GPU memory that is a node itself.)"""
        words = ask("NUMA node", self.nvml.nvmlDeviceGetMemoryAffinity, _NUMA_WORDS, self.nvml.NVML_AFFINITY_SCOPE_NODE)
        nodes = [64 * at + bit for at, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1]
        return nodes[0] if len(nodes) == 1 else None

    def _links(self, handles: dict[int, Any]) -> tuple[tuple[Link, ...], ...]:
        """Return the link matrix in the order of `handles`. Raises _LostError when one of them is gone."""
        address = {}
        for index, handle in handles.items():
            pci = self.value("PCI address", self.nvml.nvmlDeviceGetPciInfo, handle, gpu=index)
            if pci is not None:
                address[pci.domain, pci.bus, pci.device] = index
        ends = {index: self._nvlink_ends(index, handle, address) for index, handle in handles.items()}
        return tuple(tuple(self._link(a, b, handles, ends) for b in handles) for a in handles)

    def _nvlink_ends(
        self,
        index: int,
        handle: Any,  # noqa: ANN401
        address: dict[tuple[int, int, int], int],
    ) -> dict[int | None, list[int | None]]:
        """Map what GPU `index`'s active NVLinks reach (a GPU's index, None for a switch) to their versions.

        A link to a CPU, or to a GPU that this process does not see, reaches nothing here.
        """
        nvml = self.nvml
        ends: dict[int | None, list[int | None]] = {}
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self.value("NVLink state", nvml.nvmlDeviceGetNvLinkState, handle, link, gpu=index)
            if state != nvml.NVML_FEATURE_ENABLED:
                continue
            what = "NVLink's other end"
            kind = self.value(what, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link, gpu=index)
            end = None
            if kind != nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                pci = self.value(what, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link, gpu=index)
                end = None if pci is None else address.get((pci.domain, pci.bus, pci.device))
                if end is None:
                    continue
            version = self.value("NVLink version", nvml.nvmlDeviceGetNvLinkVersion, handle, link, gpu=index)
            ends.setdefault(end, []).append(version)
        return ends

    def _link(
        self, a: int, b: int, handles: dict[int, Any], ends: dict[int, dict[int | None, list[int | None]]]
    ) -> Link:
        if a == b:
            return Link("self")
        status = self._pair("peer access", self.nvml.nvmlDeviceGetP2PStatus, a, b, handles, _P2P_READ)
        peer = None if status in (None, _P2P_UNKNOWN) else status == _P2P_OK
        # Every GPU on a switch reaches every other with all the links that both have to it.
        by_switch = min(len(ends[a].get(None, ())), len(ends[b].get(None, ())))
        nvlinks = by_switch + min(len(ends[a].get(b, ())), len(ends[b].get(a, ())))
        if nvlinks:
            versions = [v for v in (*ends[a].get(b, ()), *ends[a].get(None, ())) if v is not None]
            return Link("nvlink", nvlinks, min(versions, default=None), peer)
        level = self._pair("PCIe path", self.nvml.nvmlDeviceGetTopologyCommonAncestor, a, b, handles)
        return Link("unknown" if level is None else _PCIE_PATH.get(level, "unknown"), peer_access=peer)

    def _pair(
        self, what: str, question: Callable[..., Any], a: int, b: int, handles: dict[int, Any], *more: object
    ) -> Any:  # noqa: ANN401
        """Ask about two GPUs. An answer "lost" does not say which, so each is then asked for its memory."""
        try:
            return self.value(f"{what} to GPU {b}", question, handles[a], handles[b], *more, gpu=a)
        except _LostError as lost:
            for index in (a, b):
                self.value("memory", self.nvml.nvmlDeviceGetMemoryInfo, handles[index], gpu=index)
            self.notes.append(f"GPU {a}: {what} to GPU {b} could not be read: {lost.why}")
            return None


def _why_no_nvml(nvml: ModuleType, error: Any) -> str:  # noqa: ANN401 - nvml.NVMLError is known at run time only
    """Return one line: why NVML does not start, and what to do."""
    advice = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is missing; on a machine with GPUs install the NVIDIA "
        "driver, and start a container with `--gpus all`",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded; install or load it "
        "(`modprobe nvidia`) and look into `dmesg`",
        nvml.NVML_ERROR_NO_PERMISSION: f"user {os.getuid()} may not open /dev/nvidiactl; give it the devices",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver's library and its kernel module have different "
        "versions; reboot after a driver upgrade, and restart containers",
        nvml.NVML_ERROR_UNKNOWN: "NVML fails to start with an unknown error; in a container this follows when the "
        "host takes the devices away (a systemd reload does): restart it, and name the devices or use CDI",
    }
    return "no GPU can be seen: " + advice.get(error.value, f"NVML fails to start: {error}")
