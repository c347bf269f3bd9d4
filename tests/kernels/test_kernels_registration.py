"""What an operator changes is said twice, and both must agree."""

from __future__ import annotations

import pytest

from sm70_kernels import torch_library
from sm70_kernels.torch_library import like_first, register


@pytest.mark.parametrize(
    ("schema", "mutates"),
    [("said(Tensor x, Tensor y) -> ()", ("y",)), ("unsaid(Tensor x, Tensor(a!) y) -> ()", ())],
)
def test_an_argument_that_is_changed_is_marked_and_named(schema: str, mutates: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match=r"is said to change .*, and its schema marks "):
        register(schema, cuda=None, cpu=like_first, fake=like_first, mutates=mutates)


def test_an_operator_whose_kernel_awaits_a_gpu_runs_its_reference_until_it_is_tried() -> None:
    name = "awaits_for_the_test"
    run = torch_library._awaiting(name, lambda x: x + 1, lambda x: x - 1)
    assert run(1) == 0
    torch_library._TRIED.add(name)
    try:
        assert run(1) == 2
    finally:
        torch_library._TRIED.discard(name)


def test_an_operator_whose_kernel_awaits_a_gpu_counts_as_one_without() -> None:
    schema = "awaits_a_gpu(Tensor x) -> Tensor"
    register(schema, cuda=like_first, cpu=like_first, fake=like_first, awaits_gpu=True)
    assert not torch_library.has_kernel("awaits_a_gpu")
    assert "awaits_a_gpu" in torch_library.awaiting()
