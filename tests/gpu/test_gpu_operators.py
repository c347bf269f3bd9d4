"""Every operator on every shape of the suite: float64, five times the same bits, poisoned and guarded results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from sm70_kernels import selftest
from sm70_kernels.cases import cases as cases_of
from sm70_kernels.proof.prove import prove
from sm70_kernels.proof.subject import subjects

if TYPE_CHECKING:
    from sm70_kernels.cases import Case
    from tests.gpu.conftest import Findings

pytestmark = pytest.mark.gpu

CASES = [case for operator in subjects() for case in cases_of(operator, "suite")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_exact_repeatable_and_stays_inside_its_results(case: Case, findings: Findings) -> None:
    outcome = prove(subjects()[case.operator], case, torch.device("cuda"))
    findings.outcomes.append(outcome)
    assert outcome.passed, outcome.sentence()


def test_the_self_test_passes_on_this_card() -> None:
    results = selftest.run(subjects())
    assert [result.detail for result in results.values() if not result.passed] == []
