"""The device checks without a GPU: each kernel runs on the CPU, thread by thread."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.cases import Case
from sm70_kernels.cases import cases as cases_of
from sm70_kernels.device_checks import subject as questions
from sm70_kernels.device_checks import table
from tests.kernels.kernel_emulation import COMPILER, Emulator

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


def test_the_lane_maps_load_and_store_a_product(emulator: Emulator) -> None:
    a, b = questions._products(Case("mma_lanes", {"seed": 1}), CPU)
    c = torch.full((4, 8, 8), float("nan"))
    emulator.launch(table.MMA_LANES, 1, (c, a, b))
    assert torch.allclose(c, a.float() @ b.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", cases_of("barrier_control", "suite"), ids=str)
def test_warps_hand_over_through_two_buffers(case: Case, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, named = questions._handed(case, CPU)
    for seed in range(5):
        emulator.seed = seed
        out = torch.full((128,), float("nan"))
        emulator.launch(table.NAMED_BARRIER if named else table.BLOCK_BARRIER, 1, (out, x, x.shape[0]))
        assert torch.equal(out, questions._sums(x, named))


def test_every_code_comes_through_the_tensor_core(emulator: Emulator) -> None:
    out = torch.full((3, 256), float("nan"))
    emulator.launch(table.DEQUANT_CODES, 1, (out,))
    codes = torch.arange(256)
    out[1, (codes & 0x7C) == 0x7C] = 0
    assert torch.equal(out.double(), questions._values(codes))
