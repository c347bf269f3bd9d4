"""Which GPUs can work together: groups in which every pair is joined, and the best set of a given size. Pure.

GPUs are named by their index (`Gpu.index`), which is not their place in `Machine.gpus` once one of them was lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

from appliance.topology.machine import PCIE_PATHS, Link, Machine

if TYPE_CHECKING:
    from collections.abc import Collection

Pair = tuple[int, int]
SetKind = Literal["nvlink", "peer", "any", "single", "none"]


@dataclass(frozen=True)
class BestSet:
    """GPUs chosen to work together, lowest index first.

    `kind`: `nvlink` when NVLink joins every pair, `peer` when every pair can read each other, `any` when some pair
    cannot or the source does not tell, `single` for one GPU, `none` when there is no such set (`gpus` is then empty).
    `nvlinks_min` counts the NVLinks of the weakest pair, `nvlinks_total` those of all pairs. `reason` is one sentence.
    """

    gpus: tuple[int, ...]
    kind: SetKind
    nvlinks_min: int
    nvlinks_total: int
    reason: str


def nvlink_islands(machine: Machine) -> tuple[tuple[int, ...], ...]:
    """Return the maximal groups in which NVLink joins every pair, largest first; a GPU without NVLink is its own."""
    return _maximal_groups(machine, {pair for pair, both in _pairs(machine).items() if _nvlinked(both)})


def peer_islands(machine: Machine) -> tuple[tuple[int, ...], ...]:
    """Return the maximal groups in which every pair can read each other, largest first; a lone GPU is its own."""
    return _maximal_groups(machine, {pair for pair, both in _pairs(machine).items() if _can_read(both)})


def is_full_mesh(machine: Machine, gpus: Collection[int] | None = None) -> bool:
    """Whether NVLink joins every pair of `gpus` (of all GPUs by default). A set of fewer than two is no mesh."""
    pairs = _pairs(machine)
    among = [(a, b) for a, b in pairs if gpus is None or (a in gpus and b in gpus)]
    return bool(among) and all(_nvlinked(pairs[pair]) for pair in among)


def best_set(machine: Machine, count: int, eligible: Collection[int] | None = None) -> BestSet:
    """Return the best `count` of the `eligible` GPUs (of all by default).

    A full NVLink mesh comes first, then full peer access, then anything. Among equals: the strongest weakest pair,
    the most NVLinks in all, the most pairs that can read each other, the shortest PCIe paths, the lowest indices.
    """
    candidates = [gpu.index for gpu in machine.gpus if eligible is None or gpu.index in eligible]
    if not 0 < count <= len(candidates):
        have = f"{len(candidates)} GPU{'' if len(candidates) == 1 else 's'}"
        return BestSet((), "none", 0, 0, "no GPU is wanted" if count <= 0 else f"{have} to choose from, {count} wanted")
    if count == 1:
        return BestSet((candidates[0],), "single", 0, 0, f"GPU {candidates[0]} alone needs no link")
    pairs = _pairs(machine)

    def rank(gpus: tuple[int, ...]) -> tuple[int, int, int, int, int]:
        links = [pairs[pair] for pair in combinations(gpus, 2)]
        counts = [_nvlinks(both) for both in links]
        readable = sum(map(_can_read, links))
        grade = 2 if min(counts) else int(readable == len(links))
        return grade, min(counts), sum(counts), readable, -sum(map(_distance, links))

    # Combinations come in ascending order and max keeps the first of equals, so the lowest indices win.
    gpus = max(combinations(candidates, count), key=rank)
    grade, weakest, total, _, _ = rank(gpus)
    names = ", ".join(map(str, gpus))
    if grade == 2:
        reason = f"NVLink joins every pair of GPUs {names}: {_links(weakest)} at the weakest pair, {total} in all"
        return BestSet(gpus, "nvlink", weakest, total, reason)
    if grade == 1:
        reason = f"every pair of GPUs {names} can read each other, but NVLink does not join every pair"
        return BestSet(gpus, "peer", weakest, total, reason)
    first, second = next(pair for pair in combinations(gpus, 2) if not _can_read(pairs[pair]))
    if any(link.peer_access is False for link in pairs[first, second]):
        reason = f"no {count} GPUs can all read each other: of {names}, GPUs {first} and {second} cannot"
    else:
        reason = f"nothing tells whether GPUs {first} and {second} of {names} can read each other"
    return BestSet(gpus, "any", weakest, total, reason)


def describe(machine: Machine) -> list[str]:
    """Return what a person should know about the GPUs, one sentence each, the most important first."""
    if not machine.gpus:
        return ["No GPU is visible."]
    kinds = Counter((gpu.name, gpu.capability, gpu.memory_bytes) for gpu in machine.gpus)
    cards = [
        f"{number} × {name}: {_capability(cc)}, {_memory(size)}{' each' if number > 1 and size is not None else ''}"
        for (name, cc, size), number in kinds.items()
    ]
    lines = ["; ".join(cards) + "."]
    if len(machine.gpus) > 1:
        lines.append(_nvlink_sentence(machine))
        readable = _shared(peer_islands(machine))
        if readable == [tuple(gpu.index for gpu in machine.gpus)]:
            lines.append("Every GPU can read every other GPU's memory.")
        elif readable:
            lines.append(f"GPUs that can read each other's memory: {_sets(readable)}.")
        elif any(link.peer_access is None for both in _pairs(machine).values() for link in both):
            lines.append("Whether the GPUs can read each other's memory is not known.")
        else:
            lines.append("No GPU can read another GPU's memory.")
    if len(machine.gpus) >= 4:
        lines.append(f"Best set of four: {best_set(machine, 4).reason}.")
    lines += [f"GPU {gpu.index} is in MIG mode: turn it off to use the whole GPU." for gpu in machine.gpus if gpu.mig]
    lines += [
        f"GPU {gpu.index} has compute mode Prohibited: no program can use it (`nvidia-smi -i {gpu.index} -c DEFAULT`)."
        for gpu in machine.gpus
        if gpu.compute_mode == "Prohibited"
    ]
    return lines


def _pairs(machine: Machine) -> dict[Pair, tuple[Link, Link]]:
    """Map each pair of GPU indices, lower first, to its links there and back."""
    indices = [gpu.index for gpu in machine.gpus]
    return {
        (indices[i], indices[j]): (machine.links[i][j], machine.links[j][i])
        for i, j in combinations(range(len(indices)), 2)
    }


def _nvlinks(both: tuple[Link, Link]) -> int:
    return min(link.nvlinks if link.kind == "nvlink" else 0 for link in both)


def _nvlinked(both: tuple[Link, Link]) -> bool:
    return _nvlinks(both) > 0


def _can_read(both: tuple[Link, Link]) -> bool:
    # A source that is silent on peer access still shows NVLink, over which peers read; over PCIe the chipset decides.
    return all(link.kind == "nvlink" if link.peer_access is None else link.peer_access for link in both)


def _distance(both: tuple[Link, Link]) -> int:
    farthest = len(PCIE_PATHS)
    steps = {"nvlink": 0, **{path: step for step, path in enumerate(PCIE_PATHS)}}
    return max(steps.get(link.kind, farthest) for link in both)


def _maximal_groups(machine: Machine, joined: set[Pair]) -> tuple[tuple[int, ...], ...]:
    """Return the maximal cliques (Bron and Kerbosch's algorithm; a board has at most 16 GPUs)."""
    indices = [gpu.index for gpu in machine.gpus]
    near = {a: {b for b in indices if (min(a, b), max(a, b)) in joined} for a in indices}
    groups: list[tuple[int, ...]] = []

    def grow(group: set[int], open_: set[int], done: set[int]) -> None:
        if not open_ and not done:
            groups.append(tuple(sorted(group)))
        # Only GPUs that the pivot does not join can start another maximal group.
        pivot = max(open_ | done, key=lambda gpu: len(near[gpu] & open_), default=None)
        for gpu in sorted(open_ - (near[pivot] if pivot is not None else set())):
            grow(group | {gpu}, open_ & near[gpu], done & near[gpu])
            open_ = open_ - {gpu}
            done = done | {gpu}

    if indices:
        grow(set(), set(indices), set())
    return tuple(sorted(groups, key=lambda group: (-len(group), group)))


def _nvlink_sentence(machine: Machine) -> str:
    islands = _shared(nvlink_islands(machine))
    if not islands:
        return "No NVLink between GPUs."
    if not is_full_mesh(machine):
        return f"NVLink joins the pairs within {_sets(islands)}, and no others."
    counts = sorted({_nvlinks(both) for both in _pairs(machine).values()})
    each = _links(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} links"
    return f"NVLink joins every pair of GPUs, {each} each: a full mesh."


def _shared(islands: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    return [island for island in islands if len(island) > 1]


def _sets(islands: list[tuple[int, ...]]) -> str:
    return " ".join("{" + ",".join(map(str, island)) + "}" for island in islands)


def _links(count: int) -> str:
    return f"{count} link{'' if count == 1 else 's'}"


def _capability(capability: tuple[int, int] | None) -> str:
    return "compute capability " + ("unknown" if capability is None else f"{capability[0]}.{capability[1]}")


def _memory(size: int | None) -> str:
    return "memory unknown" if size is None else f"{size / 2**30:.1f} GiB"
