"""The loops that an emulated block went through, and what one trip through a loop costs each pipe."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm70_kernels.predict.machine.flow import basic_blocks, loop_bodies, successors
from sm70_kernels.predict.machine.pipes import operation

if TYPE_CHECKING:
    from sm70_kernels.predict.constants import Constants
    from sm70_kernels.predict.emulate.block import Block
    from sm70_kernels.predict.machine.sass import Program


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: the addresses of its first and last instruction, and how many loops it lies in, itself included.

    `trips` is the mean number of times that a warp enters its head; `issued` what a warp issues in it, all trips
    together; `pipes` the cycles of each pipe that one warp's trip takes, loops inside it included.
    """

    first: int
    last: int
    depth: int
    trips: float
    issued: float
    opcodes: dict[str, float]
    pipes: dict[str, float]


def loops(program: Program, emulated: Block, machine: Constants) -> tuple[Loop, ...]:
    """Return the loops that the emulated block went through, by address."""
    blocks = basic_blocks(program)
    bodies = loop_bodies(successors(program, blocks))
    counts: Counter[int] = Counter()
    for warp in emulated.warps:
        counts.update(warp.steps)
    warps = sum(bool(warp.steps) for warp in emulated.warps) or 1
    found = []
    for head, body in sorted(bodies.items()):
        trips = counts[blocks[head].start]
        if not trips:
            continue
        inside = [index for number in body for index in blocks[number] if counts[index]]
        opcodes: Counter[str] = Counter()
        pipes: Counter[str] = Counter()
        for index in inside:
            each = program.instructions[index]
            if not each.never:
                kind = operation(each)
                opcodes[each.base] += counts[index]
                pipes[kind.pipe] += counts[index] * getattr(machine, kind.occupancy)
        found.append(
            Loop(
                first=program.instructions[min(inside)].address,
                last=program.instructions[max(inside)].address,
                depth=sum(body <= other for other in bodies.values()),
                trips=trips / warps,
                issued=sum(counts[index] for index in inside) / warps,
                opcodes={name: count / trips for name, count in opcodes.most_common()},
                pipes={name: cycles / trips for name, cycles in pipes.most_common()},
            )
        )
    return tuple(found)
