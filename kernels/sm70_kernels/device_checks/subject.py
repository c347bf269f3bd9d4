"""The card itself under proof: its tensor core's lane maps, dequantised codes through it, and its barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sm70_kernels.device_checks import reference as dequant
from sm70_kernels.device_checks.table import BLOCK_BARRIER, DEQUANT_CODES, MMA_LANES, NAMED_BARRIER
from sm70_kernels.launch import launch
from sm70_kernels.launch.outputs import new
from sm70_kernels.proof.subject import Subject, generator

if TYPE_CHECKING:
    from sm70_kernels.cases import Case


def _products(case: Case, device: torch.device) -> tuple[Any, ...]:
    numbers = generator(case)
    return tuple(torch.randn(4, *shape, generator=numbers).half().to(device) for shape in ((8, 4), (4, 8)))


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.device.type == "cpu":
        return a.float() @ b.float()
    c = new((4, 8, 8), torch.float32, a.device)
    launch(MMA_LANES, 1, (c, a, b))
    return c


def _codes(_: Case, device: torch.device) -> tuple[Any, ...]:
    return (torch.arange(256, device=device),)


def _dequantise(codes: torch.Tensor) -> torch.Tensor:
    if codes.device.type == "cpu":
        return _values(codes).float()
    out = new((3, 256), torch.float32, codes.device)
    launch(DEQUANT_CODES, 1, (out,))
    # E5M2's infinities and what is not a number, 0x7C to 0x7F and 0xFC to 0xFF, share a tensor core column with nothing
    # else, and have no value to compare.
    out[1, (codes & 0x7C) == 0x7C] = 0
    return out


def _values(codes: torch.Tensor) -> torch.Tensor:
    e5m2 = torch.where((codes & 0x7C) == 0x7C, 0.0, dequant.e5m2(codes))
    return torch.stack((dequant.e4m3(codes), e5m2, dequant.e2m1(codes)))


def _handed(case: Case, device: torch.device) -> tuple[Any, ...]:
    numbers = torch.randint(-8, 9, (case.sizes["rounds"], 128), generator=generator(case))
    return numbers.float().to(device), bool(case.sizes["named"])


def _hand_over(x: torch.Tensor, named: bool) -> torch.Tensor:
    if x.device.type == "cpu":
        return _sums(x, named)
    out = new((128,), torch.float32, x.device)
    spec = NAMED_BARRIER if named else BLOCK_BARRIER
    launch(spec, 1, (out, x, x.shape[0]))
    return out


def _sums(x: torch.Tensor, named: bool) -> torch.Tensor:
    rounds = torch.arange(1, x.shape[0] + 1, dtype=x.dtype, device=x.device)
    weighed = (rounds[:, None] * x).view(-1, 2, 2, 32)
    if named:
        weighed[-3:, 1] = 0  # the second part does three rounds less
    # The warps of each part have changed places; then the parts are added.
    sums = weighed.sum(0).flip(1)
    return (sums + sums.flip(0)).reshape(128)


SUBJECTS = (
    Subject(
        operator="mma_lanes",
        kernels=("mma_lanes",),
        inputs=_products,
        run=_multiply,
        reference=torch.matmul,
        moved_bytes=lambda _: 4 * (32 + 32) * 2 + 4 * 64 * 4,
        # Four products of 11-bit numbers summed in FP32; a wrong lane would be off by about one.
        gate=1e-6,
    ),
    Subject(
        operator="dequant_codes",
        kernels=("dequant_codes",),
        inputs=_codes,
        run=_dequantise,
        reference=_values,
        moved_bytes=lambda _: 3 * 256 * 4,
        gate=0.0,
    ),
    Subject(
        operator="barrier_control",
        kernels=("barrier_control",),
        inputs=_handed,
        run=_hand_over,
        reference=_sums,
        moved_bytes=lambda case: (case.sizes["rounds"] + 1) * 128 * 4,
        # Small whole numbers: any order of sums is exact.
        gate=0.0,
    ),
)
