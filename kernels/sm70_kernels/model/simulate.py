"""Issue the traces of an SM's resident warps in time: stall counts, scoreboard barriers, pipes, queues and memory.

Each sub-core issues at most one instruction a cycle. A warp may issue when its stall count has run out, the barriers
it waits for are free, and the pipe takes another instruction. Among warps that may, the one that issued last goes on
until it yields or stalls, then the youngest (compiler-guided greedy, then youngest: Huerta et al. 2025 found it on
later chips; for Volta it is an assumption). Memory is a queue: each access waits for its share of the bandwidth, and
for a latency that grows from the idle to the loaded figure as the share fills.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm70_kernels.model.pipes import PIPES, operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sm70_kernels.model.constants import Constants
    from sm70_kernels.model.emulate import Block
    from sm70_kernels.model.sass import Instruction, Program

WAITS = ("dram", "l2", "l1", "shared", "tensor", "special", "barrier", "pipe", "issue", "stall", "fetch")
"""What a warp can wait for before an instruction; `stall` is the count that the compiler set."""

_WINDOW = 2000.0
"""Cycles over which the load of memory is felt."""

_QUEUE = PIPES.index("queue")

_FETCH_LINE = 8
"""Instructions of a 128-byte line of code."""

_READ_AHEAD = 4
"""Lines of code that are fetched ahead of a warp (a stream buffer, Huerta et al. 2025; its depth is assumed)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What an SM gets of the memory: bytes a cycle of DRAM before and from `turn` on, and of L2.

    `cold` has, by buffer, the share of its bytes that come from DRAM and not from L2.
    """

    dram: float
    l2: float
    cold: Mapping[int, float]
    turn: float = float("inf")
    dram_later: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What happened on the SM: cycles until its last warp ended, and what was busy or waited for how long."""

    cycles: float = 0.0
    issued: int = 0
    dram_bytes: float = 0.0
    l2_bytes: float = 0.0
    queue_cycles: float = 0.0
    pipe_cycles: dict[str, float] = field(default_factory=dict)
    issue_cycles: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Static:
    """An instruction as the issue logic sees it."""

    stall: float
    yields: bool
    wait: tuple[int, ...]
    write: int
    read: int
    pipe: int
    occupancy: float
    kind: str
    latency: float
    line: int


def _static(index: int, instruction: Instruction, machine: Constants) -> _Static:
    control, kind = instruction.control, operation(instruction)
    occupancy = getattr(machine, kind.occupancy)
    stall = max(1.0, float(control.stall))
    if control.yields and stall < 2:
        stall = 2.0
    name = "plain"
    if instruction.never:
        occupancy = 1.0
    elif kind.flow == "barrier":
        name = "barrier"
    elif kind.flow == "branch":
        name = "branch"
    elif kind.space == "global":
        name = "load" if kind.loads and kind.latency == "l1" else "atomic" if kind.loads else "store"
    elif kind.space is not None:
        name = "shared"
    elif kind.pipe == "tensor":
        name = "tensor"
    elif kind.latency is not None:
        name = "special"
    if bank_conflict(instruction):
        occupancy += machine.bank_conflict
    return _Static(
        stall,
        control.yields,
        control.wait,
        -1 if control.write is None else control.write,
        -1 if control.read is None else control.read,
        PIPES.index("control" if instruction.never else kind.pipe),
        occupancy,
        name,
        getattr(machine, kind.latency) if kind.latency else 0.0,
        index // _FETCH_LINE,
    )


def bank_conflict(instruction: Instruction) -> bool:
    """Whether three different source registers, none from the reuse cache, lie in one of the two register banks."""
    if operation(instruction).pipe not in ("fma", "alu", "half"):
        return False
    sources = [each.index for each in instruction.operands[1:] if each.kind == "register" and each.index is not None]
    reused = instruction.control.reuse
    return len(set(sources)) == 3 and not reused and len({index % 2 for index in sources}) == 1


class _Warp:
    __slots__ = (
        "accesses",
        "block",
        "core",
        "drain",
        "free",
        "line",
        "number",
        "place",
        "seen",
        "steps",
        "taken",
        "why",
    )

    def __init__(self, number: int, core: int, block: _Resident, index: int) -> None:
        trace = block.traces.warps[index]
        self.steps = trace.steps
        self.accesses = trace.accesses
        self.number = number
        self.core = core
        self.block = block
        self.place = index
        self.taken = 0
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
        self.arrived: dict[int, list[_Warp]] = {}
        self.fills: dict[tuple[int, int], float] = {}


def simulate(program: Program, blocks: Sequence[Block], resident: int, memory: Memory, machine: Constants) -> Outcome:
    """Return what an SM does with `blocks`, `resident` of them at once, the next one when one ends."""
    return _Sm(program, memory, machine).run(blocks, resident)


class _Sm:
    def __init__(self, program: Program, memory: Memory, machine: Constants) -> None:
        self.table = [_static(index, each, machine) for index, each in enumerate(program.instructions)]
        self.machine = machine
        self.memory = memory
        self.cores = int(machine.sub_cores)
        self.outcome = Outcome(pipe_cycles=dict.fromkeys(PIPES, 0.0), waits=dict.fromkeys(WAITS, 0.0))
        self.queue_free = 0.0
        self.dram_free = 0.0
        self.l2_free = 0.0
        self.felt = 0.0
        self.felt_at = 0.0
        self.owed: dict[int, float] = {}
        self.loaded = machine.dram_loaded * machine.clock - machine.dram
        lines = int(machine.fetch_bytes) // (16 * _FETCH_LINE)
        self.code_lines = lines if len(self.table) > lines * _FETCH_LINE else 0
        self.fetch_free = [0.0] * self.cores
        self.held: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(self.cores)]
        self.coming: list[Block] = []
        self.core_free = [0.0] * self.cores
        self.pipe_free = [[0.0] * len(PIPES) for _ in range(self.cores)]
        self.pipe_busy = [[0.0] * len(PIPES) for _ in range(self.cores)]
        self.issued = [0] * self.cores
        self.greedy: list[_Warp | None] = [None] * self.cores
        self.cycles = 0.0
        self.ready: list[tuple[float, float, int, _Warp, float, str]] = []
        self.warps = 0

    def run(self, blocks: Sequence[Block], resident: int) -> Outcome:
        self.coming = list(blocks)
        for _ in range(min(resident, len(self.coming))):
            self._start(self.coming.pop(0), 0.0)
        while self.ready:
            self._turn(*heapq.heappop(self.ready))
        outcome = self.outcome
        outcome.cycles = max(self.cycles, self.dram_free, self.l2_free, self.queue_free)
        outcome.issued = sum(self.issued)
        outcome.issue_cycles = float(max(self.issued))
        for place, name in enumerate(PIPES):
            outcome.pipe_cycles[name] = max(busy[place] for busy in self.pipe_busy)
        return outcome

    def _turn(self, now: float, _rank: float, _number: int, warp: _Warp, since: float, why: str) -> None:
        """Issue the next instruction of a warp that its barriers let go, or put it off for what it still waits for."""
        index = warp.steps[warp.taken]
        what = self.table[index]
        self.outcome.waits[why] += now - since
        later, reason = self._later(warp, what, now)
        if later > now:
            heapq.heappush(self.ready, (later, self._rank(warp), warp.number, warp, now, reason))
            return
        self._issue(warp, what, index, now)

    def _later(self, warp: _Warp, what: _Static, now: float) -> tuple[float, str]:
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

    def _issue(self, warp: _Warp, what: _Static, index: int, now: float) -> None:
        core = warp.core
        self.core_free[core] = now + 1.0
        self.pipe_free[core][what.pipe] = now + what.occupancy
        self.pipe_busy[core][what.pipe] += what.occupancy
        self.issued[core] += 1
        self.greedy[core] = None if what.yields else warp
        warp.taken += 1
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
        warp.block.left -= 1
        if not warp.block.left and self.coming:
            self._start(self.coming.pop(0), now + self.machine.block)

    def _tensor(self, warp: _Warp, what: _Static, now: float) -> None:
        # The accumulators of the next HMMA are forwarded; any other reader waits until the pipe has drained.
        if what.write >= 0:
            self._set(warp, what.write, now + what.latency, "tensor")
            warp.drain[what.write] = max(warp.drain[what.write], now + self.machine.hmma_result)
        if what.read >= 0:
            self._set(warp, what.read, now + what.latency, "tensor")

    def _rank(self, warp: _Warp) -> float:
        return -1e9 if warp is self.greedy[warp.core] else float(-warp.number)

    def _start(self, traces: Block, when: float) -> None:
        block = _Resident(traces)
        for index in range(len(traces.warps)):
            warp = _Warp(self.warps, self.warps % self.cores, block, index)
            self.warps += 1
            if warp.steps:
                self._schedule(warp, when)
            else:
                block.left -= 1

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
        heapq.heappush(self.ready, (now, self._rank(warp), warp.number, warp, after, why))

    def _set(self, warp: _Warp, barrier: int, when: float, why: str) -> None:
        if when > warp.free[barrier]:
            warp.free[barrier] = when
            warp.why[barrier] = why

    def _release(self, warp: _Warp, what: _Static, written: float, read: float, why: str) -> None:
        if what.write >= 0:
            self._set(warp, what.write, written, why)
        if what.read >= 0:
            self._set(warp, what.read, read, "shared")

    def _arrive(self, warp: _Warp, now: float) -> None:
        """Hold a warp at a barrier until all that it is for have come."""
        access = warp.accesses[warp.seen]
        warp.seen += 1
        block = warp.block
        held = block.arrived.setdefault(access.region, [])
        held.append(warp)
        if len(held) >= min(access.wavefronts or block.left, block.left):
            when = now + self.machine.barrier
            for each in held:
                self.outcome.waits["barrier"] += when - now
                self._schedule(each, when)
            del block.arrived[access.region]

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

    def _memory(self, warp: _Warp, what: _Static, kind: str, now: float) -> None:
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
            done, why = self._beyond(access.missed, access.region, served, done)
            if kind == "load":
                warp.block.fills[warp.place, warp.seen - 1] = done
        if kind == "atomic":
            done, why = served + machine.atomic, "l2"
        self._release(warp, what, done, read, why)

    def _beyond(self, count: int, region: int, served: float, done: float) -> tuple[float, str]:
        """Take an access through L2, and its cold share through DRAM; return when its data is there."""
        memory, machine = self.memory, self.machine
        owed = self.owed.get(region, 0.0) + memory.cold.get(region, 0.0) * count
        from_dram = owed >= count / 2
        self.owed[region] = owed - count if from_dram else owed
        self.outcome.l2_bytes += count
        self.l2_free = max(self.l2_free, served) + count / memory.l2
        done = max(done, self.l2_free - count / memory.l2 + machine.l2)
        if not from_dram:
            return done, "l2"
        self.outcome.dram_bytes += count
        rate = memory.dram if served < memory.turn else memory.dram_later
        # How much of the share was used lately decides between the idle and the loaded latency.
        gone = served - self.felt_at
        if gone > 0:
            self.felt *= max(0.0, 1.0 - gone / _WINDOW)
            self.felt_at = served
        self.felt += count
        load = min(1.0, self.felt / (rate * _WINDOW))
        latency = machine.dram + max(0.0, self.loaded) * load * load
        begin = max(self.dram_free, served)
        self.dram_free = begin + count / rate
        return max(done, begin + latency), "dram"
