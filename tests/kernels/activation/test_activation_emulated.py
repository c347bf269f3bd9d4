"""The device code's logic without a GPU: each gate runs on the CPU, thread by thread, and passes the GPU's proof.

What this cannot show is left to tests/gpu: that the assembler made of it what was meant, races, and real rounding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sm70_kernels.activation import operator as gates
from sm70_kernels.cases import Case
from sm70_kernels.proof.prove import prove
from sm70_kernels.proof.subject import subjects
from tests.kernels.kernel_emulation import COMPILER, Emulator

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")
ON_GPU: dict[str, Any] = {"silu_and_mul": gates._silu_and_mul, "sigmoid_gate": gates._sigmoid_gate}
CHOSEN: list[tuple[str, dict[str, int]]] = [
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

    monkeypatch.setattr(gates, "launch", emulator.launch)
    outcome = prove(dataclasses.replace(subjects()[case.operator], run=run), case, CPU, 3)
    assert outcome.passed, outcome.sentence()
