"""The device code's logic without a GPU: each kernel runs on the CPU, thread by thread, and passes the GPU's proof.

What this cannot show is left to tests/gpu: that the assembler made of it what was meant, races, and real rounding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sm70_kernels.activation import operator as gates
from sm70_kernels.cases import Case
from sm70_kernels.cases import cases as cases_of
from sm70_kernels.device_checks import subject as questions
from sm70_kernels.device_checks import table as hardware
from sm70_kernels.norm import operator as norms
from sm70_kernels.norm import operator as rotary
from sm70_kernels.norm import table as elementwise
from sm70_kernels.proof.prove import prove, same_bits
from sm70_kernels.proof.subject import as_tuple, subjects
from tests.kernels.kernel_emulation import COMPILER, Emulator

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")
ON_GPU: dict[str, Any] = {
    "rms_norm": norms._rms_norm,
    "add_rms_norm": norms._add_rms_norm,
    "gated_rms_norm": norms._gated_rms_norm,
    "qk_norm_mrope": rotary._qk_norm_mrope,
    "silu_and_mul": gates._silu_and_mul,
    "sigmoid_gate": gates._sigmoid_gate,
}
CHOSEN = [
    *(("rms_norm", {"tokens": 3, "hidden": hidden, "gap": gap}) for hidden, gap in ((120, 0), (1001, 0), (5120, 8))),
    *(("add_rms_norm", {"tokens": 2, "hidden": 5120, "residual_bits": bits}) for bits in (16, 32)),
    *(("gated_rms_norm", {"tokens": 3, "heads": heads, "head": 128}) for heads in (5, 12)),
    *(
        ("qk_norm_mrope", {"tokens": 3, "q_heads": 6, "k_heads": 1, "head": 256, "rotary": 64, "axes": axes})
        for axes in (1, 3)
    ),
    *(
        ("qk_norm_mrope", {"tokens": 2, "q_heads": 5, "k_heads": 2, "head": head, "rotary": rotary, "axes": 3})
        for head, rotary in ((128, 128), (256, 96), (16, 16))
    ),
    *(("silu_and_mul", {"tokens": 2, "width": width}) for width in (7, 2056)),
    *(("sigmoid_gate", {"tokens": 2, "heads": 3, "head": head}) for head in (129, 256)),
]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.mark.parametrize("case", [Case(operator, sizes) for operator, sizes in CHOSEN], ids=lambda case: case.name)
def test_a_kernel_computes_its_reference(case: Case, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any) -> Any:
        # Another order of the threads each time: where a barrier is missing, results differ from run to run.
        emulator.seed += 1
        return ON_GPU[case.operator](*arguments)

    for module in (norms, rotary, gates):
        monkeypatch.setattr(module, "launch", emulator.launch)
    outcome = prove(dataclasses.replace(subjects()[case.operator], run=run), case, CPU, 3)
    assert outcome.passed, outcome.sentence()


@pytest.mark.parametrize(
    ("operator", "sizes"),
    [
        ("rms_norm", {"tokens": 3, "hidden": 5120, "gap": 8}),
        ("rms_norm", {"tokens": 4, "hidden": 120}),
    ],
)
def test_rows_taken_several_at_once_have_the_bits_of_rows_alone(
    operator: str, sizes: dict[str, int], emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(operator, sizes)
    monkeypatch.setattr(norms, "launch", emulator.launch)
    alone = as_tuple(ON_GPU[operator](*subjects()[operator].inputs(case, CPU)))
    monkeypatch.setattr(elementwise, "MANY_ROWS", 2)
    outcome = prove(dataclasses.replace(subjects()[operator], run=ON_GPU[operator]), case, CPU, 3)
    assert outcome.passed, outcome.sentence()
    assert same_bits(as_tuple(ON_GPU[operator](*subjects()[operator].inputs(case, CPU))), alone)


def test_the_lane_maps_load_and_store_a_product(emulator: Emulator) -> None:
    a, b = questions._products(Case("mma_lanes", {"seed": 1}), CPU)
    c = torch.full((4, 8, 8), float("nan"))
    emulator.launch(hardware.MMA_LANES, 1, (c, a, b))
    assert torch.allclose(c, a.float() @ b.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", cases_of("barrier_control", "suite"), ids=str)
def test_warps_hand_over_through_two_buffers(case: Case, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, named = questions._handed(case, CPU)
    for seed in range(5):
        emulator.seed = seed
        out = torch.full((128,), float("nan"))
        emulator.launch(hardware.NAMED_BARRIER if named else hardware.BLOCK_BARRIER, 1, (out, x, x.shape[0]))
        assert torch.equal(out, questions._sums(x, named))


def test_every_code_comes_through_the_tensor_core(emulator: Emulator) -> None:
    out = torch.full((3, 256), float("nan"))
    emulator.launch(hardware.DEQUANT_CODES, 1, (out,))
    codes = torch.arange(256)
    out[1, (codes & 0x7C) == 0x7C] = 0
    assert torch.equal(out.double(), questions._values(codes))
