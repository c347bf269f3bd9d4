"""Packing of FP8 weights: every weight once and where the kernel's lanes read it, scales as the checkpoint has them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sm70_kernels import lanes
from sm70_kernels.dense import reference
from sm70_kernels.dense.pack import E4M3_FOLD, PackedDense, pack_blocks, pack_channels, unpack
from sm70_kernels.dense.table import COUNTERS

FP8 = torch.float8_e4m3fn


WHOLE = partial(pack_blocks, split=(1, 1))


def weights(n: int, k: int, seed: int = 0) -> torch.Tensor:
    codes = torch.randint(0, 256, (n, k), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    return codes.view(FP8)


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(7)) + 0.5


def where_the_kernel_reads(tiles: int, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return column and k of each byte of a packed weight, in csrc/dense/w8a16.cu's own terms."""
    tile, block, step, lane, byte = torch.meshgrid(
        *(torch.arange(count) for count in (tiles, blocks, 8, 32, 16)), indexing="ij"
    )
    column = torch.tensor([8 * lanes.quad_pair(i) + lanes.b_element(i, 0).column for i in range(32)])
    # A word's even bytes, 0 and 2, become the B fragment's first register (k 0 and 1), its odd ones the second.
    within = torch.tensor([{0: 0, 2: 1, 1: 2, 3: 3}[i] for i in range(4)])
    return 32 * tile + column[lane], 128 * block + 16 * step + byte // 4 * 4 + within[byte % 4]


@pytest.mark.parametrize(("n", "k"), [(32, 128), (96, 384), (160, 256)])
def test_every_weight_lies_once_where_its_lane_reads_it(n: int, k: int) -> None:
    # Positions are written in digits below 126, so that no digit is the code of what is not a number.
    positions = torch.arange(n * k)
    digits = [
        pack_channels((positions // 126**i % 126).to(torch.uint8).view(n, k).view(FP8), scales(n)) for i in range(3)
    ]
    found = sum(each.weight.long() * 126**i for i, each in enumerate(digits))
    column, at = where_the_kernel_reads(n // 32, k // 128)
    assert torch.equal(found, column * k + at)
    assert torch.equal(found.flatten().sort().values, positions)


@given(n=st.integers(1, 140), k=st.integers(1, 300))
def test_unpacking_gives_back_what_was_packed_and_zeros_around_it(n: int, k: int) -> None:
    weight = weights(n, k)
    packed = pack_channels(weight, scales(n))
    assert packed.weight.shape == (math.ceil(n / 32), math.ceil(k / 128), 8, 32, 16)
    codes = unpack(packed.weight).reshape(-1, packed.weight.shape[1] * 128)
    assert torch.equal(codes[:n, :k], weight.view(torch.uint8))
    assert int(codes.count_nonzero()) == int(weight.view(torch.uint8).count_nonzero())


def dense(packed: PackedDense) -> torch.Tensor:
    """Return the matrix [n, k], or [2 n, k] with the gate first, that a packed layer stands for."""
    full = reference.dequantised(packed.weight, packed.scale.double())
    if not packed.gated:
        return full[: packed.n, : packed.k]
    halves = full.view(-1, 2, 32, full.shape[1]).transpose(0, 1).reshape(2, -1, full.shape[1])
    return halves[:, : packed.n, : packed.k].reshape(-1, packed.k)


@pytest.mark.parametrize(("n", "k"), [(256, 384), (4120 // 8, 300), (33, 129)])
@pytest.mark.parametrize("gated", [False, True])
def test_block_scales_stay_exact(n: int, k: int, gated: bool) -> None:
    halves, rows = 2 if gated else 1, math.ceil(n / 128)
    weight, scale = weights(halves * n, k), scales(halves * rows, math.ceil(k / 128))
    packed = pack_blocks(weight, scale, gated, split=(1, 1))
    each = scale.view(halves, rows, -1).repeat_interleave(128, 1)[:, :n].repeat_interleave(128, 2)[..., :k]
    assert torch.equal(dense(packed), weight.double() * each.reshape(-1, k).double())
    blocks = packed.weight.shape[1]
    ratios, parts, columns = packed.scale.split([blocks, blocks, 32], dim=1)
    assert torch.equal(ratios[:, 1:], parts[:, :-1] / parts[:, 1:])
    assert bool((ratios[:, 0] == 1).all())
    assert bool((columns == E4M3_FOLD).all())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1), ()])
def test_channel_scales_stay_exact(gated: bool, shape: tuple[int, ...]) -> None:
    weight = weights(120, 200)
    scale = scales(120).reshape(shape) if shape else torch.tensor(0.125)
    packed = pack_channels(weight, scale, gated)
    assert torch.equal(dense(packed), weight.double() * scale.double().reshape(-1, 1))
    assert bool((packed.scale[:, :-32] == 1).all())


def test_gate_and_up_alternate_by_tiles() -> None:
    weight = weights(2 * 64, 128)
    packed = pack_channels(weight, torch.tensor(1.0), gated=True)
    codes = weight.view(torch.uint8)
    order = (codes[:32], codes[64:96], codes[32:64], codes[96:])
    assert all(torch.equal(tile, wanted) for tile, wanted in zip(unpack(packed.weight), order, strict=True))


def test_blocks_of_zeros_take_their_neighbours_scale() -> None:
    weight = weights(128, 6 * 128)
    codes = weight.view(torch.uint8)
    for block in (0, 2, 3, 5):
        codes[:, 128 * block : 128 * (block + 1)] = 0x80 if block % 2 else 0
    scale = torch.tensor([[math.nan, 2.0, 0.0, -1.0, 8.0, math.inf]])
    packed = pack_blocks(weight, scale, split=(1, 1))
    assert packed.scale[0, 6:12].tolist() == [2, 2, 2, 2, 8, 8]
    assert packed.scale[0, :6].tolist() == [1, 1, 1, 1, 0.25, 1]
    nothing = pack_blocks(torch.zeros(64, 256).to(FP8), torch.zeros(1, 2), split=(1, 1))
    assert bool((nothing.scale[:, :4] == 1).all())


def test_the_rest_of_a_packed_layer() -> None:
    packed = pack_blocks(weights(128, 256), scales(1, 2), split=(1, 1))
    assert packed.arguments == (packed.weight, packed.scale, packed.counters, 128, 256, 1.0)
    assert packed.counters.shape == (COUNTERS,)
    assert not packed.counters.any()
    assert packed.bytes == 128 * 256 + 4 * 4 * (2 * 2 + 32) + 4 * COUNTERS


@pytest.mark.parametrize(
    ("greatest", "unit"), [(1.0, 1.0), (2.0**-9, 1.0), (2.0**14, 1.0), (2.0**-20, 2.0**-20), (2.0**20, 2.0**20)]
)
def test_the_unit_keeps_weights_normal_in_fp16(greatest: float, unit: float) -> None:
    weight = torch.full((32, 128), 448.0).to(FP8)
    assert pack_channels(weight, torch.tensor(greatest / 448)).unit == pytest.approx(unit)
    assert pack_blocks(weight, torch.tensor([[greatest / 448]]), split=(1, 1)).unit == pytest.approx(unit)


BROKEN = weights(64, 128).clone()
BROKEN.view(torch.uint8)[3, 5] = 0xFF


@pytest.mark.parametrize(
    ("function", "arguments", "says"),
    [
        (WHOLE, (BROKEN, scales(1, 1)), r"a weight \[64, 128\] has 1 elements that are not numbers"),
        (pack_channels, (BROKEN, scales(64)), r"a weight \[64, 128\] has 1 elements that are not numbers"),
        (
            WHOLE,
            (weights(64, 128).half(), scales(1, 1)),
            r"is to be float8_e4m3fn \[N, K\], not float16\[64, 128\]",
        ),
        (
            WHOLE,
            (weights(64, 128)[0], scales(1, 1)),
            r"is to be float8_e4m3fn \[N, K\], not float8_e4m3fn\[128\]",
        ),
        (WHOLE, (weights(64, 0), scales(1, 1)), r"not float8_e4m3fn\[64, 0\]"),
        (WHOLE, (weights(129, 128), scales(1, 1)), r"\[129, 128\] wants block scales \[2, 1\], not \[1, 1\]"),
        (WHOLE, (weights(200, 128), scales(1, 1), True), r"wants block scales \[2, 1\], not \[1, 1\]"),
        (WHOLE, (weights(63, 128), scales(2, 1), True), "the same number of rows, and 63 is odd"),
        (WHOLE, (weights(64, 128), -scales(1, 1)), r"scales are to be positive numbers, not -[\d.]+"),
        (WHOLE, (weights(64, 128), scales(1, 1) * math.nan), "scales are to be positive numbers, not nan"),
        (WHOLE, (weights(64, 256), torch.tensor([[1.0, 1e-30]])), r"differ by a factor of 1.0e\+30, above 2\^60"),
        (pack_channels, (weights(64, 128), scales(63)), r"a weight \[64, 128\] wants \[64\] or one scale, not \[63\]"),
        (pack_channels, (weights(64, 128), scales(64) * 0), "scales are to be positive numbers, not 0.0"),
    ],
)
def test_what_cannot_be_packed_is_refused_in_one_line(function: Any, arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)


def test_what_is_not_a_number_is_named_with_its_block() -> None:
    weight = weights(2 * 200, 300)
    weight.view(torch.uint8)[200 + 130, 140] = 0x7F
    scale = scales(4, 3)
    scale[3, 1] = 0
    with pytest.raises(ValueError, match=r"the first in row 330, column 140, block \[3, 1\] with scale 0\.0$"):
        pack_blocks(weight, scale, gated=True, split=(1, 1))


def test_nobody_packs_blocks_without_saying_how_they_are_split() -> None:
    with pytest.raises(TypeError, match="split"):
        pack_blocks(weights(128, 128), scales(1, 1))  # type: ignore[call-arg]


@pytest.mark.parametrize(("n", "k", "split"), [(1088, 256, (16, 1)), (256, 1088, (1, 16))])
def test_scale_rows_that_do_not_fit_the_shard_are_refused(n: int, k: int, split: tuple[int, int]) -> None:
    weight, scale = weights(n, k), scales(math.ceil(n / 128), math.ceil(k / 128))
    with pytest.raises(ValueError, match=r"split among 16 ranks along [NK] has 1088 of [NK] on each.*blocks of 128"):
        pack_blocks(weight, scale, split=split)
    assert pack_blocks(weight, scale, split=split[::-1]).n == n
