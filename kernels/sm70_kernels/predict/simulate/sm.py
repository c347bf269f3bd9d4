"""Issue the traces of an SM's resident warps in time: stall counts, scoreboard barriers, pipes, queues and memory.

Each sub-core issues at most one instruction a cycle. A warp may issue when its stall count has run out, the barriers
it waits for are free, and the pipe takes another instruction. Among warps that may, the one that issued last goes on
until it yields or stalls, then the youngest (Huerta et al. 2025 found that on later chips); or, with `round_robin`, the
one that has not issued for longest (as accel-sim configures Volta). Which of them Volta does is not known here.
SMs with different numbers of blocks are simulated side by side, since they share L2 and DRAM.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from sm70_kernels.predict.machine.pipes import PIPES
from sm70_kernels.predict.simulate.issue import FETCH_LINE, Issue, issue
from sm70_kernels.predict.simulate.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm70_kernels.predict.constants import Constants
    from sm70_kernels.predict.emulate.block import Block
    from sm70_kernels.predict.machine.sass import Program

WAITS = ("dram", "l2", "l1", "shared", "tensor", "special", "barrier", "pipe", "issue", "stall", "fetch")
"""What a warp can wait for before an instruction; `stall` is the count that the compiler set."""

_QUEUE = PIPES.index("queue")

_MOST_LOADS = 8
"""How many SMs are simulated side by side at most."""

_READ_AHEAD = 4
"""Lines of code that are fetched ahead of a warp (a stream buffer, Huerta et al. 2025; its depth is assumed)."""


@dataclass(frozen=True, slots=True)
class Load:
    """The blocks that an SM gets, in order, and how many SMs of the card get as much."""

    blocks: Sequence[Block]
    sms: int


@dataclass(slots=True)
class Outcome:
    """What happened on an SM: cycles until its last warp ended, and what was busy or waited for how long."""

    cycles: float = 0.0
    issued: int = 0
    dram_bytes: float = 0.0
    l2_bytes: float = 0.0
    queue_cycles: float = 0.0
    pipe_cycles: dict[str, float] = field(default_factory=dict)
    issue_cycles: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)


class _Warp:
    __slots__ = (
        *(
            "accesses",
            "block",
            "core",
            "drain",
            "free",
            "last",
            "line",
            "number",
            "order",
            "place",
            "seen",
            "sm",
            "steps",
        ),
        *("taken", "why"),
    )

    def __init__(self, sm: _Sm, number: int, block: _Resident, index: int) -> None:
        trace = block.traces.warps[index]
        self.steps = trace.steps
        self.accesses = trace.accesses
        self.number = number
        # Of a heap's equals the lower comes first, so no two may be equal.
        self.order = number * _MOST_LOADS + sm.number
        self.sm = sm
        self.core = number % sm.cores
        self.block = block
        self.place = index
        self.taken = 0
        self.last = -1.0
        self.line = -1
        self.seen = 0
        self.free = [0.0] * 6
        self.drain = [0.0] * 6
        self.why = ["stall"] * 6


class _Resident:
    """A block on the SM: how many of its warps are left, who waits at which barrier, and when its loads arrive."""

    __slots__ = ("arrived", "fills", "left", "traces")

    def __init__(self, traces: Block) -> None:
        self.traces = traces
        self.left = len(traces.warps)
        self.arrived: dict[int, list[tuple[_Warp, int]]] = {}
        self.fills: dict[tuple[int, int], float] = {}


_Turn: TypeAlias = "tuple[float, float, int, _Warp, float, str]"
"""A warp in line: when it may issue, its rank among those of that time, its number, since when it waits, for what."""


def simulate(
    program: Program, loads: Sequence[Load], resident: int, cold: Mapping[int, float], machine: Constants
) -> list[Outcome]:
    """Return what an SM of each load does, with `resident` of its blocks at once and the next one when one ends.

    `cold` has, by buffer, the share of the bytes asked for that come from DRAM.
    """
    memory = Memory(cold, machine)
    code = program.instructions
    table = [issue(index, each, code[index - 1] if index else None, machine) for index, each in enumerate(code)]
    ready: list[_Turn] = []
    sms = [_Sm(number, load, table, ready, memory, machine) for number, load in enumerate(loads)]
    for sm in sms:
        for _ in range(min(resident, len(sm.coming))):
            sm.start(0.0)
    while ready:
        now, _, _, warp, since, why = heapq.heappop(ready)
        warp.sm.turn(warp, now, since, why)
    drained = max(memory.dram_free, memory.l2_free)
    return [sm.finish(drained) for sm in sms]


class _Sm:
    def __init__(
        self, number: int, load: Load, table: list[Issue], ready: list[_Turn], memory: Memory, machine: Constants
    ) -> None:
        self.number = number
        self.alike = load.sms
        self.coming = list(load.blocks)
        self.table = table
        self.ready = ready
        self.memory = memory
        self.machine = machine
        self.cores = int(machine.sub_cores)
        self.outcome = Outcome(pipe_cycles=dict.fromkeys(PIPES, 0.0), waits=dict.fromkeys(WAITS, 0.0))
        self.queue_free = 0.0
        self.port_free = 0.0
        lines = int(machine.fetch_bytes) // (16 * FETCH_LINE)
        self.code_lines = lines if len(self.table) > lines * FETCH_LINE else 0
        self.fetch_free = [0.0] * self.cores
        self.held: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(self.cores)]
        self.core_free = [0.0] * self.cores
        self.pipe_free = [[0.0] * len(PIPES) for _ in range(self.cores)]
        self.pipe_busy = [[0.0] * len(PIPES) for _ in range(self.cores)]
        self.issued = [0] * self.cores
        self.greedy: list[_Warp | None] = [None] * self.cores
        self.cycles = 0.0
        self.warps = 0

    def finish(self, drained: float) -> Outcome:
        """Return the outcome, once nothing runs any more; stores are done when memory is, at `drained`."""
        outcome = self.outcome
        outcome.cycles = max(self.cycles, drained, self.queue_free)
        outcome.issued = sum(self.issued)
        outcome.issue_cycles = float(max(self.issued))
        for place, name in enumerate(PIPES):
            outcome.pipe_cycles[name] = max(busy[place] for busy in self.pipe_busy)
        return outcome

    def turn(self, warp: _Warp, now: float, since: float, why: str) -> None:
        """Issue the next instruction of a warp that its barriers let go, or put it off for what it still waits for."""
        index = warp.steps[warp.taken]
        what = self.table[index]
        self.outcome.waits[why] += now - since
        later, reason = self._later(warp, what, now)
        if later > now:
            heapq.heappush(self.ready, (later, self._rank(warp), warp.order, warp, now, reason))
            return
        self._send(warp, what, index, now)

    def _later(self, warp: _Warp, what: Issue, now: float) -> tuple[float, str]:
        """Return when the sub-core takes the instruction (not after `now`: at once), and what is in its way."""
        core = warp.core
        if self.core_free[core] > now:
            return self.core_free[core], "issue"
        free = self.pipe_free[core][what.pipe]
        if what.pipe == _QUEUE:
            free = max(free, self.queue_free - self.machine.queue_depth)
        if free > now or not self.code_lines or what.line == warp.line:
            return free, "pipe"
        warp.line = what.line
        return self._fetch(warp, what.line, now), "fetch"

    def _send(self, warp: _Warp, what: Issue, index: int, now: float) -> None:
        core = warp.core
        self.core_free[core] = now + 1.0
        self.pipe_free[core][what.pipe] = now + what.occupancy
        self.pipe_busy[core][what.pipe] += what.occupancy
        self.issued[core] += 1
        self.greedy[core] = None if what.yields else warp
        warp.taken += 1
        warp.last = now
        after = now + what.stall
        kind = what.kind
        if kind == "barrier":
            self._arrive(warp, now)
            return
        if kind == "branch":
            if warp.taken < len(warp.steps) and warp.steps[warp.taken] != index + 1:
                after += self.machine.taken_branch
        elif kind == "tensor":
            self._tensor(warp, what, now)
        elif kind == "special":
            self._release(warp, what, now + what.latency, now + self.machine.operands_read, "special")
        elif kind != "plain":
            self._memory(warp, what, kind, now)
        self.cycles = max(self.cycles, after)
        if warp.taken < len(warp.steps):
            self._schedule(warp, after)
            return
        block = warp.block
        block.left -= 1
        if not block.left and self.coming:
            self.start(now + self.machine.block)
        for number in list(block.arrived):
            self._let_go(block, number, now)

    def _tensor(self, warp: _Warp, what: Issue, now: float) -> None:
        # The accumulators of the next HMMA are forwarded; any other reader waits until the pipe has drained.
        if what.write >= 0:
            self._set(warp, what.write, now + what.latency, "tensor")
            warp.drain[what.write] = max(warp.drain[what.write], now + self.machine.hmma_result)
        if what.read >= 0:
            self._set(warp, what.read, now + what.latency, "tensor")

    def _rank(self, warp: _Warp) -> float:
        """Return who goes first of warps that may issue at the same time: the lowest."""
        if self.machine.round_robin:
            return warp.last
        return -1e9 if warp is self.greedy[warp.core] else float(-warp.number)

    def start(self, when: float) -> None:
        """Start the SM's next block."""
        block = _Resident(self.coming.pop(0))
        for index in range(len(block.traces.warps)):
            self._schedule(_Warp(self, self.warps, block, index), when)
            self.warps += 1

    def _schedule(self, warp: _Warp, after: float) -> None:
        """Put a warp in line for its next instruction, at the time its barriers allow."""
        what = self.table[warp.steps[warp.taken]]
        now, why = after, "stall"
        for barrier in what.wait:
            free = warp.free[barrier]
            if what.kind != "tensor" and warp.drain[barrier] > free:
                free = warp.drain[barrier]
            if free > now:
                now, why = free, warp.why[barrier]
        heapq.heappush(self.ready, (now, self._rank(warp), warp.order, warp, after, why))

    def _set(self, warp: _Warp, barrier: int, when: float, why: str) -> None:
        if when > warp.free[barrier]:
            warp.free[barrier] = when
            warp.why[barrier] = why

    def _release(self, warp: _Warp, what: Issue, written: float, read: float, why: str) -> None:
        if what.write >= 0:
            self._set(warp, what.write, written, why)
        if what.read >= 0:
            self._set(warp, what.read, read, "shared")

    def _arrive(self, warp: _Warp, now: float) -> None:
        """Hold a warp at a barrier until all that it is for have come."""
        access = warp.accesses[warp.seen]
        warp.seen += 1
        block = warp.block
        block.arrived.setdefault(access.region, []).append((warp, access.wavefronts))
        self._let_go(block, access.region, now)

    def _let_go(self, block: _Resident, number: int, now: float) -> None:
        """Release a barrier when all that it is for have come, or ended."""
        held = block.arrived[number]
        wanted = held[0][1] or block.left
        if len(held) < min(wanted, block.left):
            return
        del block.arrived[number]
        for warp, _ in held:
            self.outcome.waits["barrier"] += self.machine.barrier
            self._schedule(warp, now + self.machine.barrier)

    def _fetch(self, warp: _Warp, line: int, now: float) -> float:
        """Return when the code of an instruction is in the sub-core; the lines after it are read ahead."""
        core, fetch = warp.core, self.machine.fetch
        held = self.held[core]
        for wanted in range(line, line + 1 + _READ_AHEAD):
            if wanted in held:
                held.move_to_end(wanted)
                continue
            start = max(self.fetch_free[core], now)
            self.fetch_free[core] = start + fetch
            held[wanted] = start + self.machine.fetch_miss
            if len(held) > self.code_lines:
                held.popitem(last=False)
        return held[line]

    def _memory(self, warp: _Warp, what: Issue, kind: str, now: float) -> None:
        access = warp.accesses[warp.seen]
        warp.seen += 1
        machine = self.machine
        wavefront = machine.shared_wavefront if kind == "shared" else machine.l1_wavefront
        start = max(now, self.queue_free)
        served = start + access.wavefronts * wavefront
        self.queue_free = served
        self.outcome.queue_cycles += served - start
        read = max(now + machine.operands_read, served)
        if kind == "shared":
            # The last wavefront's data comes a full latency after it was served.
            self._release(warp, what, max(now, served - wavefront) + what.latency, read, "shared")
            return
        done, why = served + machine.l1, "l1"
        if access.filler is not None:
            done = max(done, warp.block.fills.get(access.filler, served + machine.l2))
        if access.missed:
            # The SM's own port comes first, then what all SMs share.
            begin = max(self.port_free, served)
            self.port_free = begin + access.missed / machine.l2_port
            there, from_dram = self.memory.access(access.missed, access.region, self.alike, self.number, begin)
            done, why = max(done, there), "dram" if from_dram else "l2"
            self.outcome.l2_bytes += access.missed
            self.outcome.dram_bytes += access.missed * from_dram
            if kind == "load":
                warp.block.fills[warp.place, warp.seen - 1] = done
        if kind == "atomic":
            done, why = served + machine.atomic, "l2"
        self._release(warp, what, done, read, why)
