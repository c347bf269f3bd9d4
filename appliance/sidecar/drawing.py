"""Where the status page draws GPUs and NVLinks. Pure geometry; the template makes SVG of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from appliance.topology.machine import Gpu, Machine

BOX = (96.0, 58.0)
"""Width and height of a GPU."""

MARGIN = 14.0
LANE_GAP = 5.0
"""Distance between two lanes of one pair."""


MOST_LANES = 18
"""NVLinks of the largest GPU; a record that claims more must not fill the memory."""


@dataclass(frozen=True)
class Box:
    """One GPU, by its upper left corner."""

    index: int
    x: float
    y: float
    memory: str
    chosen: bool


@dataclass(frozen=True)
class Lane:
    """One NVLink between two GPUs; `chosen` when both are."""

    x1: float
    y1: float
    x2: float
    y2: float
    chosen: bool


@dataclass(frozen=True)
class Drawing:
    """GPUs that NVLink joins, directly or over others; or those that it does not join to any."""

    title: str
    description: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    lanes: tuple[Lane, ...]


def draw(machine: Machine, chosen: Collection[int]) -> tuple[Drawing, ...]:
    """Return a drawing for each group that NVLink joins, and one for all other GPUs."""
    groups = _groups(machine)
    joined = [group for group in groups if len(group) > 1]
    alone = [place for group in groups if len(group) == 1 for place in group]
    found = [_drawing(machine, group, chosen, nvlink=True) for group in joined]
    if alone:
        found.append(_drawing(machine, alone, chosen, nvlink=False))
    return tuple(found)


def nvlinks(machine: Machine, a: int, b: int) -> int:
    """Return how many NVLinks join the GPUs at places `a` and `b` of the machine's list, in the weaker direction."""
    there = (machine.links[a][b], machine.links[b][a])
    return min(MOST_LANES, *(link.nvlinks if link.kind == "nvlink" else 0 for link in there))


def _groups(machine: Machine) -> list[list[int]]:
    """The connected parts of the NVLink graph, as places in the machine's list."""
    left = list(range(len(machine.gpus)))
    groups = []
    while left:
        group = [left.pop(0)]
        for place in group:  # grows while it is walked
            near = [other for other in left if nvlinks(machine, place, other)]
            group += near
            left = [other for other in left if other not in near]
        groups.append(sorted(group))
    return groups


def _drawing(machine: Machine, group: Sequence[int], chosen: Collection[int], *, nvlink: bool) -> Drawing:
    centres = _circle(len(group)) if nvlink else _row(len(group))
    left, top = min(x for x, _ in centres), min(y for _, y in centres)
    shift_x, shift_y = MARGIN + BOX[0] / 2 - left, MARGIN + BOX[1] / 2 - top
    at = {place: (x + shift_x, y + shift_y) for place, (x, y) in zip(group, centres, strict=True)}
    lanes: list[Lane] = []
    sentences = []
    for n, a in enumerate(group):
        for b in group[n + 1 :]:
            count = nvlinks(machine, a, b)
            if count:
                pair = machine.gpus[a].index, machine.gpus[b].index
                lanes += _lanes(at[a], at[b], count, chosen=all(index in chosen for index in pair))
                sentences.append(f"GPU {pair[0]} to GPU {pair[1]}: {count} NVLink{'' if count == 1 else 's'}")
    names = ", ".join(str(machine.gpus[place].index) for place in group)
    return Drawing(
        title=f"GPUs {names} joined by NVLink" if nvlink else f"GPU{'s' * (len(group) > 1)} {names} without NVLink",
        description=". ".join(sentences) or "No NVLink",
        width=max(x for x, _ in at.values()) + BOX[0] / 2 + MARGIN,
        height=max(y for _, y in at.values()) + BOX[1] / 2 + MARGIN,
        boxes=tuple(_box(machine.gpus[place], *at[place], chosen) for place in group),
        lanes=tuple(lanes),
    )


def _circle(count: int) -> list[tuple[float, float]]:
    """Centres on a circle on which the boxes stand clear of each other; four make a square, read line by line."""
    if count == 2:
        return [(0.0, 0.0), (210.0, 0.0)]
    if count == 4:
        return [(x, y) for y in (0.0, 165.0) for x in (0.0, 165.0)]
    radius = max(118.0, 26.0 * count)
    angles = (2 * math.pi * n / count - math.pi / 2 for n in range(count))
    return [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]


def _row(count: int) -> list[tuple[float, float]]:
    return [((n % 4) * (BOX[0] + 12), (n // 4) * (BOX[1] + 12)) for n in range(count)]


def _lanes(a: tuple[float, float], b: tuple[float, float], count: int, *, chosen: bool) -> list[Lane]:
    length = math.hypot(b[0] - a[0], b[1] - a[1])
    across = (-(b[1] - a[1]) / length, (b[0] - a[0]) / length)
    lanes = []
    for n in range(count):
        off = (n - (count - 1) / 2) * LANE_GAP
        x, y = across[0] * off, across[1] * off
        x1, y1, x2, y2 = (round(v, 1) for v in (a[0] + x, a[1] + y, b[0] + x, b[1] + y))
        lanes.append(Lane(x1, y1, x2, y2, chosen))
    return lanes


def _box(gpu: Gpu, x: float, y: float, chosen: Collection[int]) -> Box:
    memory = "" if gpu.memory_bytes is None else f"{gpu.memory_bytes / 2**30:.0f} GiB"
    return Box(gpu.index, round(x - BOX[0] / 2, 1), round(y - BOX[1] / 2, 1), memory, gpu.index in chosen)
