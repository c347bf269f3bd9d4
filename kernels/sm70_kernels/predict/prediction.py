"""Predict what a launch takes on a V100-SXM2: `predict(spec, launch)`. Nothing here has run on one.

The blocks of a launch are emulated (which instructions, which addresses), one SM's share of them is simulated in time,
and waves on all SMs, memory shared among those that still work, and the start of a kernel make a duration of that.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sm70_kernels.build.occupancy import occupancy
from sm70_kernels.predict.constants import Constants, Corner, constants
from sm70_kernels.predict.emulate.block import Block, run_block
from sm70_kernels.predict.emulate.environment import PARAMETERS, REGION_SHIFT, Environment
from sm70_kernels.predict.launch import Buffer, Launch
from sm70_kernels.predict.loops import Loop, loops
from sm70_kernels.predict.machine.cubin import Code, code_of
from sm70_kernels.predict.machine.pipes import unknown_opcodes
from sm70_kernels.predict.simulate.sm import Load, Outcome, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm70_kernels.registry import Specialisation

Bound = Literal[
    "dram", "l2", "issue", "tensor", "mio", "alu", "fma", "half", "special", "latency", "wave tail", "launch"
]

_TABLES = ("opcodes", "pipes")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of a launch. Every figure is predicted; none was measured on a V100.

    `us` is the kernel's own duration, without the gap to the next one. `used` is each resource's share of the busiest
    SM's time, `waits` each reason's share of the time that warps spent between instructions. `roofline_us` is what its
    cold bytes take of DRAM, all its bytes of L2 or its products of the tensor cores, whichever is most, and
    `roofline_share` that over `us`. `loops` are those of the first sampled block.
    """

    kernel: str
    shape: str
    us: float
    bound: Bound
    roofline_us: float
    roofline_share: float
    dram_bytes: int
    blocks: int
    resident_blocks: int
    warps_a_block: int
    registers: int
    shared_bytes: int
    waves: float
    body_cycles: float
    used: dict[str, float]
    waits: dict[str, float]
    notes: tuple[str, ...]
    loops: tuple[Loop, ...]
    provenance: str = field(default="predicted", init=False)
    basis: str = field(default="machine code", init=False)

    def record(self) -> dict[str, Any]:
        """Return the prediction as JSON-ready values, figures rounded."""
        values = asdict(self)
        for name in ("us", "roofline_us", "roofline_share", "waves", "body_cycles"):
            values[name] = round(values[name], 3)
        for table in (values["used"], values["waits"], *(loop[key] for loop in values["loops"] for key in _TABLES)):
            table.update({key: round(value, 3) for key, value in table.items()})
        return values


def predict(spec: Specialisation, launch: Launch, machine: Constants | Corner = "expected") -> Prediction:
    """Return the predicted time of a launch of `spec`, as `predict_code` does. Compiles it when need be.

    Raises KernelError when it cannot be compiled, disassembled or followed, ValueError for arguments that do not fit.
    """
    return predict_code(code_of(spec), launch, _shape_of(spec), machine)


@dataclass(frozen=True, slots=True)
class Kernel:
    """What of a specialisation the model needs besides its code."""

    name: str
    params: str
    threads: int
    dynamic_shared: int = 0


def _shape_of(spec: Specialisation) -> Kernel:
    return Kernel(spec.name, spec.kernel.params, spec.threads, spec.shared_bytes)


def predict_code(code: Code, launch: Launch, kernel: Kernel, machine: Constants | Corner = "expected") -> Prediction:
    """Return the predicted time of a launch of code that is at hand, on a machine or at a corner of the one known.

    Raises as `predict`.
    """
    if not isinstance(machine, Constants):
        machine = constants(machine)
    shared = code.static_shared + kernel.dynamic_shared
    fits = occupancy(kernel.threads, code.registers, shared)
    if not fits.blocks:
        raise ValueError(f"{kernel.name} fits no SM: {code.registers} registers, {shared} bytes of shared memory")
    typical, closing = sampled_blocks(code, launch, kernel, max(machine.l1_bytes - shared * fits.blocks, 16384))
    cold = _cold(launch, typical)
    run = _Waves(code, launch, typical, closing, fits.blocks, cold, machine).run()
    return _conclude(code, launch, kernel, machine, fits.blocks, shared, typical, run)


def sampled_blocks(code: Code, launch: Launch, kernel: Kernel, l1_bytes: float) -> tuple[list[Block], list[Block]]:
    """Return the emulated blocks of a launch: those that it samples, and the one that closes a group, if any."""
    banks = {**code.constants, 0: constant_bank(launch, kernel)}
    contents = {number: each.contents for number, each in enumerate(launch.args) if isinstance(each, Buffer)}

    def block(place: tuple[int, int, int], atomic: int | None) -> Block:
        environment = Environment(place, launch.extent, (kernel.threads, 1, 1), banks, atomic, contents)
        return run_block(code.program, environment, int(l1_bytes))

    if launch.closing is None:
        return [block(place, None) for place in launch.sample], []
    return [block(place, 0) for place in launch.sample], [block(launch.sample[-1], launch.closing)]


def constant_bank(launch: Launch, kernel: Kernel) -> bytes:
    """Return constant bank 0 as a launch fills it. Raises ValueError when arguments and parameters differ."""
    if len(launch.args) != len(kernel.params):
        raise ValueError(
            f"{kernel.name} takes {len(kernel.params)} parameters ({kernel.params}), not {len(launch.args)}"
        )
    bank = bytearray(PARAMETERS)
    struct.pack_into("<6I", bank, 0, kernel.threads, 1, 1, *launch.extent)
    values: list[int | float] = []
    for number, (letter, value) in enumerate(zip(kernel.params, launch.args, strict=True)):
        if isinstance(value, Buffer) != (letter == "P"):
            raise ValueError(f"{kernel.name}: parameter {number} is {letter!r}, given {value!r}")
        values.append(number + 1 << REGION_SHIFT if isinstance(value, Buffer) else value)
    return bytes(bank) + struct.pack(kernel.params, *values)


def _asked(launch: Launch, blocks: Sequence[Block], number: int) -> float:
    """Return the bytes of a buffer that all SMs together read and write, whatever L2 holds of them."""
    each = sum(block.read.get(number, 0) + block.written.get(number, 0) for block in blocks) / len(blocks)
    return each * launch.blocks


def _cold(launch: Launch, blocks: Sequence[Block]) -> dict[int, float]:
    """Return by buffer what share of the bytes that SMs read comes from DRAM: each cold byte once."""
    shares: dict[int, float] = {}
    for number, buffer in enumerate(launch.args):
        if isinstance(buffer, Buffer) and buffer.cold:
            asked = _asked(launch, blocks, number)
            shares[number] = min(1.0, buffer.bytes / asked) if asked else 0.0
    return shares


def _notes(code: Code, launch: Launch, blocks: Sequence[Block]) -> tuple[str, ...]:
    """Return what makes a prediction doubtful."""
    notes = []
    if guessed := sum(block.guessed for block in blocks):
        notes.append(f"{guessed} branches or addresses hang on data and were guessed")
    if unknown := unknown_opcodes(code.program.instructions):
        notes.append(f"opcodes taken for integer ones: {', '.join(unknown)}")
    for number, buffer in enumerate(launch.args):
        if isinstance(buffer, Buffer) and buffer.cold and buffer.bytes > _LARGE:
            asked = _asked(launch, blocks, number)
            if asked < 0.9 * buffer.bytes:
                notes.append(f"parameter {number} is said to be {buffer.bytes} bytes, and {asked:.0f} are touched")
    return tuple(notes)


_LARGE = 1 << 20
"""Bytes from which a buffer that is not touched whole is worth a note."""

_MOST_WAVES = 3
"""Rounds of resident blocks that are simulated; the rest is taken to go on as between the last two."""


class _Waves:
    """The time of the busiest SM, with the others working beside it."""

    def __init__(
        self,
        code: Code,
        launch: Launch,
        typical: list[Block],
        closing: list[Block],
        resident: int,
        cold: dict[int, float],
        machine: Constants,
    ) -> None:
        self.code, self.launch, self.typical, self.closing = code, launch, typical, closing
        self.resident, self.cold, self.machine = resident, cold, machine

    def run(self) -> Outcome:
        sms = int(self.machine.sms)
        longest = -(-self.launch.blocks // sms)
        most = _MOST_WAVES * self.resident
        if longest > most:
            return self._extrapolate(longest, most)
        busiest = self.launch.blocks - sms * (longest - 1)
        loads = [Load(self._blocks(longest), busiest)]
        if longest > 1 and busiest < sms:
            loads.append(Load(self._blocks(longest - 1), sms - busiest))
        return self._simulate(loads)

    def _extrapolate(self, longest: int, most: int) -> Outcome:
        sms = int(self.machine.sms)
        shorter = self._simulate([Load(self._blocks(most - self.resident), sms)])
        longer = self._simulate([Load(self._blocks(most), sms)])
        # A tail of a part of a wave among so many: the last round counts whole.
        factor = (longest - most) / self.resident

        def along(a: float, b: float) -> float:
            return b + (b - a) * factor

        return Outcome(
            cycles=along(shorter.cycles, longer.cycles),
            issued=round(along(shorter.issued, longer.issued)),
            dram_bytes=along(shorter.dram_bytes, longer.dram_bytes),
            l2_bytes=along(shorter.l2_bytes, longer.l2_bytes),
            queue_cycles=along(shorter.queue_cycles, longer.queue_cycles),
            issue_cycles=along(shorter.issue_cycles, longer.issue_cycles),
            pipe_cycles={
                name: along(shorter.pipe_cycles[name], longer.pipe_cycles[name]) for name in longer.pipe_cycles
            },
            waits=longer.waits,
        )

    def _blocks(self, count: int) -> list[Block]:
        blocks = [self.typical[number % len(self.typical)] for number in range(count)]
        if self.closing:
            last = -(-count // self.launch.group)
            blocks[count - last :] = [self.closing[0]] * last
        return blocks

    def _simulate(self, loads: list[Load]) -> Outcome:
        return simulate(self.code.program, loads, self.resident, self.cold, self.machine)[0]


def _conclude(
    code: Code,
    launch: Launch,
    kernel: Kernel,
    machine: Constants,
    resident: int,
    shared: int,
    typical: Sequence[Block],
    run: Outcome,
) -> Prediction:
    buffers = [each for each in launch.args if isinstance(each, Buffer)]
    cold_bytes = sum(each.bytes for each in buffers if each.cold)
    all_bytes = sum(each.bytes for each in buffers)
    floors = (cold_bytes / machine.dram_bandwidth / 1e3, all_bytes / machine.l2_bandwidth / 1e3)
    roofline = max(*floors, machine.microseconds(launch.products / machine.products_a_cycle))
    us = machine.microseconds(run.cycles) + machine.ramp
    sms = machine.sms
    mean = launch.blocks / sms / max(1, -(-launch.blocks // int(sms)))
    l2_asked = sum(sum(block.read.values()) + sum(block.written.values()) for block in typical) / len(typical)
    used = {
        "dram": cold_bytes / machine.dram_bytes_a_cycle / run.cycles,
        "l2": l2_asked * launch.blocks / machine.l2_bytes_a_cycle / run.cycles,
        "mio": run.queue_cycles / run.cycles,
        "issue": run.issue_cycles / run.cycles,
        **{name: cycles / run.cycles for name, cycles in run.pipe_cycles.items() if name not in ("queue", "control")},
    }
    total = sum(run.waits.values()) or 1.0
    return Prediction(
        kernel=kernel.name,
        shape=launch.shape,
        us=us,
        bound=_bound(used, mean, machine.ramp / us),
        roofline_us=roofline,
        roofline_share=roofline / us,
        dram_bytes=cold_bytes,
        blocks=launch.blocks,
        resident_blocks=resident,
        warps_a_block=-(-kernel.threads // 32),
        registers=code.registers,
        shared_bytes=shared,
        waves=launch.blocks / sms / resident,
        body_cycles=run.cycles,
        used=used,
        waits={name: value / total for name, value in run.waits.items() if value},
        notes=_notes(code, launch, typical),
        loops=loops(code.program, typical[0], machine),
    )


def _bound(used: dict[str, float], mean: float, ramp: float) -> Bound:
    """Name what a launch waits for: a resource that is nearly full, else uneven SMs, the start, or latency."""
    names: dict[str, Bound] = {
        "dram": "dram",
        "l2": "l2",
        "mio": "mio",
        "issue": "issue",
        "tensor": "tensor",
        "alu": "alu",
        "fma": "fma",
        "half": "half",
        "special": "special",
    }
    fullest = max(names, key=lambda name: used.get(name, 0.0))
    if ramp > 0.4:
        return "launch"
    if used[fullest] >= 0.75:
        return names[fullest]
    if mean < 0.8:
        return "wave tail"
    return "latency"
