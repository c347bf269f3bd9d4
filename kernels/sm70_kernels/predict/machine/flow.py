"""The control-flow graph of a kernel: its basic blocks, and which of them make a natural loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm70_kernels.predict.machine.sass import Instruction, Program

_ENDS = frozenset({"BRA", "JMP", "EXIT", "RET", "CALL", "BSYNC", "BREAK"})


def basic_blocks(program: Program) -> list[range]:
    """Return the basic blocks as ranges of instruction indices, in order."""
    code = program.instructions
    at = {each.address: index for index, each in enumerate(code)}
    leaders = {0}
    for index, each in enumerate(code):
        # Where lanes meet again (BSSY names it) a block starts too.
        if each.target is not None:
            leaders.add(at[each.target])
        if each.base in _ENDS:
            leaders.add(index + 1)
    starts = sorted(leader for leader in leaders if leader < len(code))
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(code)], strict=True)]


def successors(program: Program, blocks: Sequence[range]) -> list[list[int]]:
    """Return for each block the numbers of those that may follow it."""
    code = program.instructions
    starting = {block.start: number for number, block in enumerate(blocks)}
    at = {each.address: index for index, each in enumerate(code)}
    found: list[list[int]] = []
    for number, block in enumerate(blocks):
        last = code[block[-1]]
        following = [number + 1] if number + 1 < len(blocks) else []
        jumps = last.base in ("BRA", "JMP") and last.target is not None
        if (jumps or last.base in ("EXIT", "RET")) and not _conditional(last):
            following = []
        if jumps and last.target is not None:
            following.append(starting[at[last.target]])
        found.append(list(dict.fromkeys(following)))
    return found


def _conditional(branch: Instruction) -> bool:
    guarded = branch.guard is not None and branch.guard.index is not None
    return guarded or any(each.kind == "predicate" and each.index is not None for each in branch.operands)


def _dominators(after: Sequence[Sequence[int]]) -> list[set[int]]:
    """Return for each block the blocks that every path from the start to it passes; all for one that none reaches."""
    everything = set(range(len(after)))
    before: list[list[int]] = [[] for _ in after]
    for number, following in enumerate(after):
        for each in following:
            before[each].append(number)
    found = [{0}, *(set(everything) for _ in after[1:])]
    changed = True
    while changed:
        changed = False
        for number in range(1, len(after)):
            common = set.intersection(*(found[each] for each in before[number])) if before[number] else everything
            if (now := common | {number}) != found[number]:
                found[number], changed = now, True
    return found


def loop_bodies(after: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """Return the blocks of each natural loop by its head; back edges to one head make one loop."""
    dominators = _dominators(after)
    before: list[list[int]] = [[] for _ in after]
    for number, following in enumerate(after):
        for each in following:
            before[each].append(number)
    bodies: dict[int, set[int]] = {}
    for number, following in enumerate(after):
        for head in following:
            # A block that jumps to itself for ever pads the end of the code.
            if head not in dominators[number] or (head == number and after[number] == [head]):
                continue
            body = bodies.setdefault(head, {head})
            waiting = [number]
            while waiting:
                if (each := waiting.pop()) not in body:
                    body.add(each)
                    waiting += before[each]
    return bodies
