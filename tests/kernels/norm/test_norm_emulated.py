"""The device code's logic without a GPU: each norm runs on the CPU, thread by thread, and passes the GPU's proof.

What this cannot show is left to tests/gpu: that the assembler made of it what was meant, races, and real rounding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sm70_kernels.cases import Case
from sm70_kernels.norm import operator as norms
from sm70_kernels.norm import table
from sm70_kernels.proof.prove import prove, same_bits
from sm70_kernels.proof.subject import as_tuple, subjects
from tests.kernels.kernel_emulation import COMPILER, Emulator

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")
ON_GPU: dict[str, Any] = {
    "rms_norm": norms._rms_norm,
    "add_rms_norm": norms._add_rms_norm,
    "gated_rms_norm": norms._gated_rms_norm,
    "qk_norm_mrope": norms._qk_norm_mrope,
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

    monkeypatch.setattr(norms, "launch", emulator.launch)
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
    monkeypatch.setattr(table, "MANY_ROWS", 2)
    outcome = prove(dataclasses.replace(subjects()[operator], run=ON_GPU[operator]), case, CPU, 3)
    assert outcome.passed, outcome.sentence()
    assert same_bits(as_tuple(ON_GPU[operator](*subjects()[operator].inputs(case, CPU))), alone)
