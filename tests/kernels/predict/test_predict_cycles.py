"""The predicting model against cycles counted by hand. What a trip costs is the difference of two trip counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sm70_kernels.predict.constants import constants
from sm70_kernels.predict.launch import Buffer, Launch
from sm70_kernels.predict.machine.sass import parse
from sm70_kernels.predict.prediction import sampled_blocks
from sm70_kernels.predict.simulate.issue import bank_conflict
from sm70_kernels.predict.simulate.sm import Load, simulate
from tests.kernels.predict.counted_kernels import BANKS, CHASE, COPY, FFMA, HMMA, compiled, predicted

pytestmark = pytest.mark.needs("engine")

OUT = Buffer(4096)
IN = Buffer(4096)


def cycles_a_trip(text: str, params: str, threads: int, args: tuple[Buffer | float, ...], **constants: int) -> float:
    short, long = (
        predicted(text, params, threads, Launch(80, (OUT, *args, trips)), **constants).body_cycles for trips in (10, 30)
    )
    return (long - short) / 20


def test_independent_ffma_take_two_cycles_each() -> None:
    # 16 lanes: 64 FFMA x 2 = 128 cycles a warp. Four warps a sub-core hide one another's loop end (IADD3, ISETP, BRA,
    # the refetch), which issues beside the FMA pipe: 4 x 128 = 512, and never less.
    found = cycles_a_trip(FFMA, "Pffi", 512, (1.0, 2.0), CHAINS=8)
    assert found == pytest.approx(512, rel=0.03)
    assert found >= 512


def test_dependent_ffma_take_four_cycles_each() -> None:
    # A stall count of 4 on each of 64: 256 cycles. The loop's end adds the branch: stall 5 and the refetch of 4; IADD3
    # and ISETP issue within the stalls, except that they may take up to 4 more.
    found = cycles_a_trip(FFMA, "Pffi", 128, (1.0, 2.0), CHAINS=1)
    assert 256 + 5 <= found <= 256 + 16


@pytest.mark.parametrize(("chains", "each"), [(1, 8.66), (4, 8.38)])
def test_m8n8k4_take_what_was_measured(chains: int, each: float) -> None:
    # docs/volta.md, "Tensor cores": 8.66 cycles dependent, 8.38 with four chains. One warp a sub-core; 32 a trip. The
    # loop's end stops the warp: the branch's stall of 5, the refetch of 4, and one accumulator's wait (the last
    # barrier) at most.
    found = cycles_a_trip(HMMA, "PPi", 128, (IN,), CHAINS=chains)
    assert 32 * each - 1 <= found <= 32 * each + 20


def test_two_warps_keep_the_tensor_pipe_full_across_the_loop_end() -> None:
    # 2 warps x 32 x 8.38 = 536.3: what one loses at its loop's end, the other issues.
    found = cycles_a_trip(HMMA, "PPi", 256, (IN,), CHAINS=4)
    assert found == pytest.approx(2 * 32 * 8.38, rel=0.02)


def test_whoever_issues_first_the_tensor_pipe_is_full() -> None:
    code, kernel = compiled(HMMA, "PPi", 256, CHAINS=4)
    machine = replace(constants(), round_robin=1.0)
    blocks = [sampled_blocks(code, Launch(80, (OUT, IN, trips)), kernel, 1 << 16)[0] for trips in (10, 30)]
    short, long = (simulate(code.program, [Load(each, 80)], 1, {}, machine)[0].cycles for each in blocks)
    assert (long - short) / 20 == pytest.approx(2 * 32 * 8.38, rel=0.02)


def test_dependent_shared_loads_take_what_was_measured() -> None:
    # docs/volta.md, "Latencies and caches": 26.4 cycles each, 16 a trip, and the loop's end of at most 16.
    found = cycles_a_trip(CHASE, "Pi", 32, ())
    assert 16 * 26.4 - 0.1 <= found <= 16 * 26.4 + 16


@pytest.mark.parametrize("stride", [1, 2, 4, 32])
def test_bank_conflicts_multiply_the_time_of_shared_loads(stride: int) -> None:
    # Four warps, one a sub-core; 32 loads a trip, each `stride` wavefronts of the one pipe of the SM: 4 x 32 x stride.
    # Without conflicts 32 loads end before the warp has issued them (2 cycles each through the sub-core's port: 64) and
    # added them up, so the pipe is not what bounds then.
    found = cycles_a_trip(BANKS, "Pi", 128, (), STRIDE=stride)
    wavefronts = 4 * 32 * stride
    assert wavefronts <= found <= wavefronts + 130


def test_three_sources_in_one_register_bank_cost_a_cycle() -> None:
    listing = """
	.section	.text.k,"ax",@progbits
        /*0000*/  FFMA R0, R2.reuse, R4, R7 ;   /* 0x0 */
                                                /* 0x010fe20000000000 */
        /*0010*/  FFMA R1, R2, R4, R6 ;         /* 0x0 */
                                                /* 0x000fe20000000000 */
        /*0020*/  FFMA R1, R2, R4, R6 ;         /* 0x0 */
                                                /* 0x000fe20000000000 */
        /*0030*/  FFMA R1, R2, R2, R6 ;         /* 0x0 */
                                                /* 0x000fe20000000000 */
    """.replace("0x0 ", f"{'0x' + '0' * 16} ")
    code = parse(listing, "k").instructions
    # Two banks by parity. Of the second R2 is still in the reuse cache; the fourth reads two registers only.
    assert [bank_conflict(each, before) for each, before in zip(code, [None, *code], strict=False)] == [
        *(False, False, True, False)
    ]


def test_a_streaming_copy_is_bound_by_dram() -> None:
    # 64 MiB in and out at 870 GB/s: 154.3 us. Starting costs the ramp and one loaded latency.
    count = 1 << 22
    memory = Buffer(16 * count, cold=True)
    found = predicted(COPY, "PPi", 256, Launch(640, (memory, memory, count)))
    floor = 2 * 16 * count / 870e3
    assert found.bound == "dram"
    assert found.roofline_us == pytest.approx(floor, rel=1e-6)
    assert floor + constants().ramp - 0.5 <= found.us <= floor + constants().ramp + 2.0
    assert found.used["dram"] > 0.97


def test_a_copy_with_little_in_flight_is_bound_by_latency() -> None:
    # One warp an SM with one load in flight: 80 x 512 bytes for each wait of the DRAM latency and the write after it.
    count = 1 << 16
    memory = Buffer(16 * count, cold=True)
    found = predicted(COPY, "PPi", 32, Launch(80, (memory, memory, count)))
    machine = constants()
    trips = count / (80 * 32)
    assert found.bound == "latency"
    assert trips * machine.dram < found.body_cycles < trips * (machine.dram + 120)


def test_what_is_in_l2_is_bound_by_l2_and_faster() -> None:
    count = 1 << 16
    cold, warm = (
        predicted(COPY, "PPi", 256, Launch(640, (Buffer(16 * count, is_cold), Buffer(16 * count, is_cold), count)))
        for is_cold in (True, False)
    )
    assert warm.us < cold.us
    assert warm.dram_bytes == 0
