"""The card's kernels on the CPU, thread by thread, beside their references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from sm70_kernels.card import reference, table
from sm70_kernels.card.cases import cases
from sm70_kernels.card.subject import BLOCKS, SUBJECTS, counters
from sm70_kernels.proof.prove import relative_error
from tests.kernels.kernel_emulation import COMPILER, Emulator

if TYPE_CHECKING:
    from sm70_kernels.cases import Case
    from sm70_kernels.registry import Specialisation

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to emulate device code with")

CPU = torch.device("cpu")
SUBJECT = {subject.operator: subject for subject in SUBJECTS}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulated"))


def chosen(case: Case) -> Specialisation:
    """Return the specialisation that a case is for."""
    names = {"in_flight": "LOADS"}
    wanted = {names.get(key, key.upper()): value for key, value in case.sizes.items()}
    return next(
        spec
        for spec in table.SPECIALISATIONS
        if spec.kernel.name == case.operator
        and all(spec.constants[k] == v for k, v in wanted.items() if k in spec.constants)
    )


def launched(emulator: Emulator, case: Case, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the kernel of a case. Returns its result and the cycles, which the emulation counts as reads of the clock."""
    spec = chosen(case)
    blocks = {"card_read": BLOCKS, "card_empty": 2}.get(case.operator, 1)
    whole = case.operator in ("card_read", "card_latency", "card_rate", "card_barrier")
    size = case.sizes.get("count", blocks * spec.threads)
    out = torch.full((size,), -1, dtype=torch.int32) if whole else torch.full((size,), float("nan"))
    cycles = counters(spec, CPU)
    sizes = case.sizes
    arguments: dict[str, tuple[Any, ...]] = {
        "card_empty": (out, sizes.get("count")),
        "card_read": (out, inputs[0], sizes.get("rounds")),
        "card_latency": (out, cycles, inputs[0], *inputs[2:]),
        "card_rate": (out, cycles, inputs[0], sizes.get("trips")),
        "card_tensor": (out, cycles, inputs[0], sizes.get("trips")),
        "card_barrier": (out, cycles, sizes.get("rounds")),
        "card_fetch": (out, cycles, *inputs[1:4], sizes.get("trips")),
    }
    emulator.launch(spec, blocks, arguments[case.operator])
    return out, cycles


@pytest.mark.parametrize("case", list(cases("suite")), ids=lambda case: case.name)
def test_a_kernel_computes_what_its_reference_does(case: Case, emulator: Emulator) -> None:
    subject = SUBJECT[case.operator]
    inputs = subject.inputs(case, CPU)
    (wanted,) = subject.wanted(inputs)
    for seed in range(3):
        emulator.seed = seed
        out, cycles = launched(emulator, case, inputs)
        assert relative_error(out, wanted) <= subject.gate
        if case.operator not in ("card_empty", "card_read"):
            assert bool((cycles > 0).all())


def test_every_specialisation_has_a_case() -> None:
    assert {chosen(case) for case in cases("suite")} == set(table.SPECIALISATIONS)


def test_sums_are_modulo_two_to_the_32() -> None:
    assert reference.words(torch.tensor([2**31, 2**32 + 5, -(2**31) - 1])).tolist() == [-(2**31), 5, 2**31 - 1]
