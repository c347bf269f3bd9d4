"""Every family's operators on a CPU: legal for torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sm70_kernels.cases import cases as cases_of
from sm70_kernels.proof.subject import as_tuple, subjects

CPU = torch.device("cpu")
OPERATORS = [
    name
    for name in subjects()
    if hasattr(torch.ops.sm70, name) and getattr(torch.ops.sm70, name).default._schema.returns
]
"""Those that return something; the others, which change their arguments, have tests of their own. What no operator
launches, as a check of the device does, is a subject all the same."""


def test_the_operators_that_return_something_are_there() -> None:
    assert {"dense_w8a16", "rms_norm", "add_rms_norm", "silu_and_mul"} <= set(OPERATORS)


def arguments_of(operator: str) -> tuple[Any, ...]:
    return subjects()[operator].inputs(cases_of(operator, "selftest")[0], CPU)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_is_legal_for_torch_compile(operator: str) -> None:
    function = getattr(torch.ops.sm70, operator)
    arguments = arguments_of(operator)
    torch.library.opcheck(function.default, arguments)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for eager, traced in zip(as_tuple(function(*arguments)), as_tuple(compiled(*arguments)), strict=True):
        assert torch.equal(eager, traced)
