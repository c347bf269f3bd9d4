"""Integers that a launch declares: loops to lengths, block tables, narrow and wide loads, and what stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm70_kernels.predict.launch import Buffer, Launch, integers
from tests.kernels.predict.counted_kernels import HEAD, predicted
from tests.kernels.predict.test_predict_emulate import run, stored

if TYPE_CHECKING:
    from sm70_kernels.predict.prediction import Prediction

pytestmark = pytest.mark.needs("engine")

__all__ = ["stored"]

PAGES = """(float* out, const int* lengths, const int* table, const float* cache, int most) {
    const int length = lengths[blockIdx.x];
    float sum = 0;
#pragma unroll 1
    for (int page = 0; page * 16 < length; ++page) {
        const long long at = table[blockIdx.x * most + page];
        sum += cache[at * 1024 + threadIdx.x];
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}"""
MOST = 8


def paged(lengths: Buffer, table: Buffer, sequence: int) -> Prediction:
    """Predict the sum over the pages of sequences, of which one is sampled."""
    args = (Buffer(1 << 10), lengths, table, Buffer(1 << 20, cold=True), MOST)
    return predicted(HEAD + PAGES, "PPPPi", 64, Launch(80, args, sample=((sequence, 0, 0),)))


def test_a_loop_runs_to_the_declared_length_and_over_the_declared_pages() -> None:
    lengths = integers([16, 100])
    table = integers([*range(MOST), *(40, 3, 17, 9, 2, 30, 1, 0)])
    for sequence, pages in ((0, 1), (1, 7)):
        found = paged(lengths, table, sequence)
        assert found.notes == ()
        (loop,) = found.loops or (None,)
        assert (loop.trips if loop else 1) == pages
    assert paged(lengths, table, 1).us > paged(lengths, table, 0).us


def test_pages_of_unknown_lengths_are_said_to_be_guessed() -> None:
    found = paged(Buffer(8), Buffer(64), 1)
    assert "hang on data and were guessed" in found.notes[0]


def test_addresses_are_those_of_the_block_table(stored: list[int]) -> None:
    text = """(char* out, const int* table) {
        for (int page = 0; page < 3; ++page) out[table[page] * 64 + threadIdx.x] = 1;
    }"""
    found = run(text, "PP", 32, (0, 0), contents={1: integers([5, 0, 1000]).contents})
    written = [at for at in stored if at < 1 << 20]
    assert written == [page * 64 + lane for page in (5, 0, 1000) for lane in range(32)]
    assert found.guessed == 0


@pytest.mark.parametrize(
    ("kind", "width", "wanted"),
    [
        ("signed char", 1, -100),
        ("unsigned char", 1, 156),
        ("short", 2, -100),
        ("unsigned short", 2, 65436),
        ("int", 4, -100),
        ("long long", 8, -100),
    ],
)
def test_narrow_and_wide_loads(kind: str, width: int, wanted: int, stored: list[int]) -> None:
    text = f"(char* out, const {kind}* in) {{ out[(long long)in[threadIdx.x % 2] + 70000] = 1; }}"
    found = run(text, "PP", 32, (0, 0), contents={1: integers([7, -100], width).contents})
    assert found.guessed == 0
    assert [at for at in stored if at < 1 << 20][:2] == [70007, 70000 + wanted]


def test_a_vector_is_loaded_word_by_word(stored: list[int]) -> None:
    text = "(char* out, const int4* in) { const int4 each = in[1]; out[each.x + 10 * each.y + each.w] = 1; }"
    run(text, "PP", 32, (0, 0), contents={1: integers(range(8)).contents})
    assert [at for at in stored if at < 1 << 20] == [4 + 50 + 7] * 32


def test_inactive_lanes_keep_what_they_had(stored: list[int]) -> None:
    text = """(char* out, const int* in, int n) {
        int at = threadIdx.x * 2;
        if ((int)threadIdx.x < n) at = in[threadIdx.x];
        out[at] = 1;
    }"""
    run(text, "PPi", 32, (0, 0, 4), contents={1: integers([500, 400, 300, 200]).contents})
    assert sorted(at for at in stored if at < 1 << 20) == sorted([500, 400, 300, 200, *range(8, 64, 2)])


def test_a_store_is_not_read_back_as_what_was_declared() -> None:
    text = """(int* out, int* in, int n) {
        in[n] = out[threadIdx.x];
        __threadfence();
        out[((volatile int*)in)[MINE]] = 1;
    }"""
    held = {1: integers([1, 2, 3]).contents}
    assert run(text.replace("MINE", "2"), "PPi", 32, (0, 0, 1), contents=held).guessed == 0
    assert run(text.replace("MINE", "1"), "PPi", 32, (0, 0, 1), contents=held).guessed > 0


def test_beyond_what_was_declared_data_is_unknown() -> None:
    text = "(int* out, const int* in) { out[in[threadIdx.x]] = 1; }"
    assert run(text, "PP", 32, (0, 0), contents={1: integers(range(31)).contents}).guessed > 0
    assert run(text, "PP", 32, (0, 0), contents={1: integers(range(32)).contents}).guessed == 0


def test_floating_point_of_declared_bytes_stays_data() -> None:
    text = "(int* out, const float* in) { if (in[0] * 2.f > 1.f) out[threadIdx.x] = 1; }"
    assert run(text, "PP", 32, (0, 0), contents={1: bytes(4)}).guessed > 0


def test_numbers_must_fit_their_width() -> None:
    assert integers([1, 2, 3], 8, cold=True) == Buffer(24, cold=True, contents=integers([1, 2, 3], 8).contents)
    with pytest.raises(ValueError, match="integers of 2 bytes cannot hold -40000"):
        integers([1, -40000], 2)
