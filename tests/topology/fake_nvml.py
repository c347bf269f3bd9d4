"""A stand-in for pynvml: real constants and errors, answers from a board that a test describes."""

# ruff: noqa: N802 - the names are NVML's

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml

SWITCH = -1
CPU = -2


@dataclass
class Card:
    """One GPU. `links` lists what each of its NVLinks reaches: a GPU's index, SWITCH or CPU.

    `errors` maps a question of NVML to the error that it meets; `lost` makes every question meet GPU_IS_LOST.
    """

    name: str = "Tesla V100-SXM2-16GB"
    capability: tuple[int, int] = (7, 0)
    memory: int = 16160 * 2**20
    links: list[int] = field(default_factory=list)
    mig: int | None = None
    ecc: int | None = 1
    mode: int = 0
    numa: int = 0
    lost: bool = False
    errors: dict[str, int] = field(default_factory=dict)


class FakeNvml(ModuleType):
    """`peer(a, b)` and `level(a, b)` answer for pairs; `lose_at` loses a card at the n-th question about it."""

    def __init__(self, cards: list[Card], *, init_error: int | None = None) -> None:
        super().__init__("fake_nvml")
        self.cards = cards
        self.init_error = init_error
        self.errors: dict[str, int] = {}
        self.peer_status: dict[tuple[int, int], int] = {}
        self.levels: dict[tuple[int, int], int] = {}
        self.lose_at: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def _fail(self, code: int) -> None:
        raise pynvml.NVMLError(code)

    def _card(self, handle: int, question: str) -> Card:
        card = self.cards[handle]
        self.asked[handle] = self.asked.get(handle, 0) + 1
        if self.asked[handle] >= self.lose_at.get(handle, 10**9):
            card.lost = True
        if question in card.errors:
            self._fail(card.errors[question])
        if card.lost:
            self._fail(pynvml.NVML_ERROR_GPU_IS_LOST)
        return card

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            self._fail(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        if "driver" in self.errors:
            self._fail(self.errors["driver"])
        return "570.172.08"

    def nvmlDeviceGetCount(self) -> int:
        if "count" in self.errors:
            self._fail(self.errors["count"])
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._card(index, "handle")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self._card(handle, "name").name

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        self._card(handle, "uuid")
        return f"GPU-{handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self._card(handle, "capability").capability

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=self._card(handle, "memory").memory)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        mig = self._card(handle, "mig").mig
        if mig is None:
            self._fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [mig or 0, 0]

    def nvmlDeviceGetEccMode(self, handle: int) -> list[int]:
        ecc = self._card(handle, "ecc").ecc
        if ecc is None:
            self._fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [ecc or 0, 0]

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:
        return self._card(handle, "mode").mode

    def nvmlDeviceGetMemoryAffinity(self, handle: int, words: int, scope: int) -> list[int]:
        assert scope == pynvml.NVML_AFFINITY_SCOPE_NODE
        node = self._card(handle, "numa").numa
        return [1 << node - 64 * at if 64 * at <= node < 64 * at + 64 else 0 for at in range(words)]

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        self._card(handle, "pci")
        return SimpleNamespace(domain=0, bus=0x15 + handle, device=0)

    def _link(self, handle: int, link: int, question: str) -> int:
        links = self._card(handle, question).links
        if link >= max(len(links), 6):
            self._fail(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if link >= len(links):
            self._fail(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return links[link]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        self._link(handle, link, "link state")
        return int(pynvml.NVML_FEATURE_ENABLED)

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int:
        self._link(handle, link, "link version")
        return 2

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        end = self._link(handle, link, "link type")
        return {SWITCH: 2, CPU: 1}.get(end, 0)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> SimpleNamespace:
        end = self._link(handle, link, "link end")
        return SimpleNamespace(domain=0, bus=0x15 + end if end >= 0 else 0xFF, device=0)

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, capability: int) -> int:
        assert capability == 0
        self._card(a, "peer")
        self._card(b, "peer")
        return self.peer_status.get((a, b), int(pynvml.NVML_P2P_STATUS_OK))

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        self._card(a, "level")
        self._card(b, "level")
        return self.levels.get((a, b), int(pynvml.NVML_TOPOLOGY_SYSTEM))


def four_v100() -> list[Card]:
    """Four V100 on one SXM2 board: two of each card's six NVLinks to each other card."""
    return [Card(links=[other for other in range(4) if other != i for _ in range(2)], numa=i // 2) for i in range(4)]
