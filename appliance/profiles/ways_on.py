"""What a person can do where only links are in the way, where GPUs stay idle, where a paste names no card. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from appliance.profiles.fit import LINKS, gpu_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from appliance.profiles.fit import Fit
    from appliance.profiles.select import Selection
    from appliance.topology.machine import Machine

    Choose = Callable[[Machine], Selection]

_CARDS = {"V100 16 GB": 16_944_988_160, "V100 32 GB": 34_089_205_760}
"""Bytes that a driver reports for each card that the kernels are for, as in config/topologies."""

_V100_NVLINKS = 6

_ORDINALS = ("second", "third", "fourth")


def past_links(machine: Machine, rejected: Sequence[Fit]) -> tuple[str, ...]:
    """Return what would let a profile start that has nothing but the links between GPUs against it; else nothing."""
    held = [fit for fit in rejected if fit.reasons and all(reason.startswith(LINKS) for reason in fit.reasons)]
    if not held:
        return ()
    fit = held[0]
    gpus = gpu_names(list(fit.gpus))
    lines = []
    if _unknown_peers(machine, fit.gpus):
        lines.append(
            f"{fit.profile} fits if {gpus} can read each other's memory: `nvidia-smi topo -p2p r` there tells, and a "
            "recording of `appliance topology --save` holds it"
        )
    return (
        *lines,
        f"without peer access {fit.profile} starts on {gpus} with APPLIANCE_PROFILE={fit.profile} and "
        "APPLIANCE_FORCE=1: ranks then exchange through host memory (/dev/shm), which is slower",
        f"a profile without peers does the same without force: a copy of {fit.profile}.yaml as own.yaml, with "
        "`name: own` and, under `needs`, `links: none`; APPLIANCE_PROFILE=./own.yaml takes it",
        "for peer access in a virtual machine, the hypervisor must grant it: pass the GPUs of one board through "
        "together with their NVLinks, or put PCIe GPUs into one peer group (QEMU: x-nv-gpudirect-clique); without a "
        "hypervisor, turn ACS off in the BIOS, and the IOMMU (VT-d, AMD-Vi) off there or to passthrough (iommu=pt)",
    )


def further_instances(machine: Machine, used: Sequence[int], choose: Choose) -> Iterator[str]:
    """Yield a line for each further instance that the GPUs outside `used` have room for."""
    taken = set(used)
    for number in range(len(machine.gpus)):
        idle = _only(machine, [gpu.index for gpu in machine.gpus if gpu.index not in taken])
        if not idle.gpus:
            return
        found = choose(idle)
        if found.chosen is None or not found.gpus:
            return
        names = ",".join(map(str, found.gpus))
        ordinal = f"a {_ORDINALS[number]}" if number < len(_ORDINALS) else "another"
        yield (
            f"{ordinal} instance fits on {names}: {found.chosen}, started with CUDA_VISIBLE_DEVICES={names} and its "
            "own --port, --sidecar-port and --state-dir"
        )
        taken |= set(found.gpus)


def by_card(machine: Machine, choose: Choose) -> tuple[str, ...]:
    """Return what would be started for each card that a machine may have whose source names none; else nothing."""
    if not machine.gpus or any(gpu.capability or gpu.memory_bytes for gpu in machine.gpus):
        return ()
    for gpu, row in zip(machine.gpus, machine.links, strict=True):
        count = sum(link.nvlinks for link in row)
        if count > _V100_NVLINKS:
            return (
                f"GPU {gpu.index} has {count} NVLinks and a V100 has {_V100_NVLINKS}: these are other cards, and the "
                "kernels are for V100s",
            )
    return tuple(
        f"if these are {card}: {_answer(_as_card(machine, card, size), choose)}" for card, size in _CARDS.items()
    )


def _answer(machine: Machine, choose: Choose) -> str:
    found = choose(machine)
    if found.chosen is not None:
        idle = [gpu.index for gpu in machine.gpus if gpu.index not in found.gpus]
        more = list(further_instances(machine, found.gpus, choose)) if idle else []
        rest = f"; {gpu_names(idle)} stay{'s' if len(idle) == 1 else ''} idle" if idle else ""
        second = "".join(f", {line.partition(':')[0]}" for line in more)
        return f"{found.chosen} on {gpu_names(list(found.gpus))}{rest}{second}"
    if past := past_links(machine, found.rejected):
        return past[0]
    nearest = min((fit for fit in found.rejected if fit.gpus), key=lambda fit: len(fit.reasons), default=None)
    return f"nothing fits; nearest is {nearest.profile}: {'; '.join(nearest.reasons)}" if nearest else "nothing fits"


def _as_card(machine: Machine, name: str, size: int) -> Machine:
    gpus = tuple(replace(gpu, name=name, capability=(7, 0), memory_bytes=size) for gpu in machine.gpus)
    # 580 is the last branch that knows Volta; a driver that was told stays.
    return replace(machine, gpus=gpus, driver=machine.driver or "580")


def _only(machine: Machine, indices: Sequence[int]) -> Machine:
    kept = [at for at, gpu in enumerate(machine.gpus) if gpu.index in indices]
    links = tuple(tuple(machine.links[row][column] for column in kept) for row in kept)
    return replace(machine, gpus=tuple(machine.gpus[at] for at in kept), links=links)


def _unknown_peers(machine: Machine, gpus: Sequence[int]) -> bool:
    """Whether nothing says that a pair cannot read each other, and for some pair nothing says that it can."""
    at = [place for place, gpu in enumerate(machine.gpus) if gpu.index in gpus]
    links = [machine.links[a][b] for a in at for b in at if a != b]
    silent = any(link.peer_access is None and link.kind != "nvlink" for link in links)
    return silent and all(link.peer_access is not False for link in links)
