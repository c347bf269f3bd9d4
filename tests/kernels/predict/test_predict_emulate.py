"""The emulated block against Python: addresses, trips, divergence, barriers, and what is said of the unknown."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from sm70_kernels.errors import KernelError
from sm70_kernels.predict import loops as looping
from sm70_kernels.predict.constants import constants
from sm70_kernels.predict.emulate import addresses
from sm70_kernels.predict.emulate import block as emulate
from sm70_kernels.predict.emulate.block import Block, run_block
from sm70_kernels.predict.emulate.environment import PARAMETERS, REGION_SHIFT, Environment
from tests.kernels.predict.counted_kernels import HEAD, compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sm70_kernels.predict.emulate.arithmetic import Bits, Longs

pytestmark = pytest.mark.needs("engine")

START = 1 << REGION_SHIFT


def run(
    text: str,
    params: str,
    threads: int,
    args: Sequence[float],
    place: tuple[int, int, int] = (0, 0, 0),
    atomic: int | None = None,
    contents: Mapping[int, bytes] | None = None,
) -> Block:
    """Emulate a block of kernel `text`; pointers are numbered from START by parameter, which `contents` goes by too."""
    code, _ = compiled(HEAD + text, params, threads)
    bank = bytearray(PARAMETERS)
    struct.pack_into("<6I", bank, 0, threads, 1, 1, 7, 5, 3)
    values = [number + 1 << REGION_SHIFT if letter == "P" else args[number] for number, letter in enumerate(params)]
    banks = {**code.constants, 0: bytes(bank) + struct.pack(params, *values)}
    environment = Environment(place, (7, 5, 3), (threads, 1, 1), banks, atomic, contents or {})
    return run_block(code.program, environment, 1 << 16)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that receives the byte address, from START on, of every active lane of a global access."""
    found: list[int] = []
    original = addresses.sectors

    def sectors(where: Longs, active: Bits) -> list[int]:
        found.extend(int(each) - START for each in where[active])
        return original(where, active)

    monkeypatch.setattr(addresses, "sectors", sectors)
    return found


EXPRESSIONS: dict[str, Callable[[int, int], int]] = {
    "i * 12 + blockIdx.y * 1000": lambda i, n: i * 12 + 2000,
    "i / n + 100 * (i % n)": lambda i, n: i // n + 100 * (i % n),
    "(unsigned)i / (unsigned)n * 3": lambda i, n: i // n * 3,
    "max(i - 40, -i) + 200": lambda i, n: max(i - 40, -i) + 200,
    "min(abs(i - 30), n * 5)": lambda i, n: min(abs(i - 30), n * 5),
    "(i < 20 && i > n) || i == 3 ? 1 : 0": lambda i, n: int((n < i < 20) or i == 3),
    "(i ^ n) & ~(i << 3) | 1": lambda i, n: ((i ^ n) & ~(i << 3)) | 1,
    "(-i >> 1) + 100": lambda i, n: (-i >> 1) + 100,
    "(int)((unsigned)-i >> 27)": lambda i, n: ((-i) & 0xFFFFFFFF) >> 27,
    "__byte_perm(i * 0x01010101, 0, 0x4442)": lambda i, n: i,
    "(int)(((long long)i * 0x123456789LL) >> 33)": lambda i, n: i * 0x123456789 >> 33,
    "(int)__umulhi(i, 0x80000001u)": lambda i, n: i * 0x80000001 >> 32,
    "__popc(__ballot_sync(0xffffffff, i % 4 == 0)) + i": lambda i, n: 8 + i,
    "__shfl_sync(0xffffffff, i * 2, 5) + i % 2": lambda i, n: i // 32 * 64 + 10 + i % 2,
    "__funnelshift_r(i, n, 31)": lambda i, n: n << 1 | i >> 31,
    "(i & 1 ? i * n : i + n)": lambda i, n: i * n if i & 1 else i + n,
}


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_integers_are_followed(expression: str, stored: list[int]) -> None:
    found = run(
        f"(char* out, int n) {{ const int i = threadIdx.x; out[{expression}] = 1; }}", "Pi", 64, (0, 7), (1, 2, 0)
    )
    wanted = [EXPRESSIONS[expression](i, 7) for i in range(64)]
    assert stored == wanted or sorted(stored) == sorted(wanted)
    assert found.guessed == 0


def test_addresses_have_64_bits(stored: list[int]) -> None:
    stride = (1 << 33) + 24
    run(
        "(char* out, long long stride, int rows) { for (int r = 0; r < rows; ++r) out[r * stride + threadIdx.x] = 1; }",
        "Pqi",
        32,
        (0, stride, 3),
    )
    assert stored == [row * stride + lane for row in range(3) for lane in range(32)]


def test_trips_come_from_the_parameters_and_the_place_in_the_grid() -> None:
    text = """(float* out, int n, float a) {
        float c = threadIdx.x;
    #pragma unroll 1
        for (int i = blockIdx.x; i < n; i += gridDim.x)
    #pragma unroll 1
            for (int j = 0; j < 3; ++j) c = fmaf(c, a, a);
        out[threadIdx.x] = c;
    }"""
    code, _ = compiled(HEAD + text, "Pif", 64)
    found = run(text, "Pif", 64, (0, 30, 1.0), (2, 0, 0))
    outer, inner = looping.loops(code.program, found, constants())
    # 2, 9, 16, 23: four of them, with three trips in each.
    assert (outer.depth, outer.trips) == (1, 4)
    assert (inner.depth, inner.trips) == (2, 12)
    assert inner.opcodes["FFMA"] == 1
    assert inner.pipes["fma"] >= constants().fma
    assert outer.first <= inner.first
    assert inner.last <= outer.last


def test_lanes_go_their_own_ways_and_meet_again(stored: list[int]) -> None:
    text = """(int* out, int n) {
        int sum = 0;
        if (threadIdx.x % 3 == 0) {
    #pragma unroll 1
            for (int i = 0; i < (int)threadIdx.x; ++i) sum += n;
        } else {
            sum = -(int)threadIdx.x;
        }
        __syncwarp();
        out[sum + 40] = 1;
    }"""
    found = run(text, "Pi", 32, (0, 1))
    assert sorted(stored) == sorted(4 * (40 + (i if i % 3 == 0 else -i)) for i in range(32))
    # All lanes store in one instruction: they met.
    assert sum(access.missed > 0 for access in found.warps[0].accesses) == 1


def test_warps_of_a_block_pass_integers_through_shared_memory(stored: list[int]) -> None:
    text = """(int* out, int n) {
        __shared__ int box[64];
        box[threadIdx.x] = threadIdx.x * n;
        __syncthreads();
        out[box[63 - threadIdx.x]] = 1;
    }"""
    found = run(text, "Pi", 64, (0, 3))
    assert stored == [4 * 3 * (63 - i) for i in range(64)]
    assert found.guessed == 0


def test_a_barrier_may_be_for_some_warps() -> None:
    text = """(int* out, int n) {
        if (threadIdx.x >= 64) return;
        asm volatile("bar.sync 3, 64;" ::: "memory");
        out[threadIdx.x] = n;
    }"""
    found = run(text, "Pi", 128, (0, 3))
    assert [sum(access.missed for access in warp.accesses) for warp in found.warps] == [128, 128, 0, 0]
    assert found.written == {0: 256}


LAST = """(int* out, int* counter, int n) {
    __shared__ int mine;
    if (threadIdx.x == 0) mine = atomicAdd(counter, 1);
    __syncthreads();
    if (mine != n - 1) return;
    out[threadIdx.x] = 1;
}"""


@pytest.mark.parametrize(("answer", "written"), [(3, 256), (0, 0)])
def test_what_an_atomic_answers_decides_who_is_last(answer: int, written: int) -> None:
    found = run(LAST, "PPi", 64, (0, 0, 4), atomic=answer)
    assert found.written.get(0, 0) == written
    assert found.guessed == 0


def test_what_hangs_on_data_is_counted() -> None:
    text = "(int* out, const int* in) { if (in[threadIdx.x] > 3) out[in[threadIdx.x + 32]] = 1; }"
    assert run(text, "PP", 32, (0, 0)).guessed > 0


def test_reads_that_hit_l1_do_not_leave_the_sm() -> None:
    text = """(int* out, const int* in) {
        const volatile int* from = in;
        int sum = 0;
    #pragma unroll 1
        for (int i = 0; i < 4; ++i) sum += __ldg(in + threadIdx.x + (i & 1) * 32);
        out[threadIdx.x] = sum + (from == nullptr);
    }"""
    found = run(text, "PP", 32, (0, 0))
    assert found.read == {1: 256}


def test_an_endless_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate, "_MOST_INSTRUCTIONS", 10_000)
    text = "(int* out, int n) { for (int i = 0; i != n; i += 2) out[i & 31] = i; }"
    with pytest.raises(KernelError, match="k: a block issues over 10000"):
        run(text, "Pi", 32, (0, 1))
