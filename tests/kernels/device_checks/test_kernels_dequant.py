"""The dequantisation identities over every code, against the formats' definitions and torch's own types."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from sm70_kernels.build.compiler import compile_specialisation
from sm70_kernels.device_checks import reference as dequant
from sm70_kernels.device_checks.table import DEQUANT_CODES
from sm70_kernels.errors import KernelError
from sm70_kernels.registry import CSRC, Kernel, Specialisation

if TYPE_CHECKING:
    from pathlib import Path

CODES = torch.arange(256)


def words(code: torch.Tensor) -> torch.Tensor:
    """The code in bytes 0 and 3, its complement between: a shift that leaks a neighbour's bit shows."""
    return code | (code ^ 0xFF) << 8 | (code ^ 0xFF) << 16 | code << 24


def test_e4m3() -> None:
    number = (CODES & 0x7F) != 0x7F
    wanted = dequant.e4m3(CODES)
    assert torch.equal(wanted[number], CODES.to(torch.uint8).view(torch.float8_e4m3fn).double()[number])
    even, odd = dequant.halves(dequant.e4m3_even(words(CODES))), dequant.halves(dequant.e4m3_odd(words(CODES)))
    assert torch.equal(even[:, 0] * dequant.E4M3_FOLD, wanted)
    assert torch.equal(odd[:, 1] * dequant.E4M3_FOLD, wanted)
    assert torch.equal(even[:, 1], even[:, 0].flip(0)), "byte 2 holds the complement"
    assert torch.equal(odd[:, 0], odd[:, 1].flip(0)), "byte 1 holds the complement"


def test_only_the_subnormal_codes_of_e4m3_lean_on_subnormal_halves() -> None:
    values = dequant.halves(dequant.e4m3_even(CODES))[:, 0]
    subnormal = (values != 0) & (values.abs() < 2.0**-14)
    assert int(subnormal.sum()) == 14


def test_e5m2() -> None:
    number = (CODES & 0x7C) != 0x7C
    wanted = CODES.to(torch.uint8).view(torch.float8_e5m2).double()
    assert torch.equal(dequant.e5m2(CODES)[number], wanted[number])
    even, odd = dequant.halves(dequant.e5m2_even(words(CODES))), dequant.halves(dequant.e5m2_odd(words(CODES)))
    assert torch.equal(even[number, 0], wanted[number])
    assert torch.equal(odd[number, 1], wanted[number])
    infinite = (CODES & 0x7F) == 0x7C
    assert torch.equal(even[infinite, 0], wanted[infinite])


@pytest.mark.parametrize("index", range(4))
def test_e2m1(index: int) -> None:
    codes = torch.arange(16)
    others = 0xFFFFFFFF ^ (0x000F000F << 4 * index)
    pair = dequant.halves(dequant.e2m1_pair(others | codes << 4 * index | (codes ^ 15) << 16 + 4 * index, index))
    wanted = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    wanted = torch.cat((wanted, -wanted)).double()
    assert torch.equal(dequant.e2m1(codes), wanted)
    assert torch.equal(pair[:, 0] * dequant.E2M1_FOLD, wanted)
    assert torch.equal(pair[:, 1] * dequant.E2M1_FOLD, wanted.flip(0))


def test_the_device_code_proves_itself_while_it_compiles() -> None:
    compile_specialisation(DEQUANT_CODES)


@pytest.mark.parametrize(
    ("header", "right", "wrong", "says"),
    [
        ("e4m3", "word >> 1 & 0x3F803F80u", "word >> 1 & 0x3F003F80u", "E4M3 to FP16"),
        ("e5m2", "word & 0xFF00FF00u", "word & 0xFE00FF00u", "E5M2 to FP16"),
        ("e2m1", "12 - 4 * index", "11 - 4 * index", "E2M1 to FP16"),
    ],
)
def test_a_wrong_identity_does_not_compile(tmp_path: Path, header: str, right: str, wrong: str, says: str) -> None:
    text = (CSRC / f"dequant/{header}.cuh").read_text()
    assert right in text
    (tmp_path / "wrong.cuh").write_text(text.replace(right, wrong))
    proof = (CSRC / DEQUANT_CODES.kernel.source).read_text()
    source = tmp_path / "proof.cu"
    source.write_text(proof.replace(f"dequant/{header}.cuh", str(tmp_path / "wrong.cuh")))
    kernel = Kernel("proof", source=str(source), entry="dequant_codes", params="P", constants=("THREADS",))
    with pytest.raises(KernelError, match=says):
        compile_specialisation(Specialisation(kernel, {"THREADS": 32}))
