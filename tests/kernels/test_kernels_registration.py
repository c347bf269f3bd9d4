"""What an operator changes is said twice, and both must agree."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels import dispatch
from sm70_kernels.torch_library import has_kernel, like_first, register


@pytest.mark.parametrize(
    ("schema", "mutates"),
    [("said(Tensor x, Tensor y) -> ()", ("y",)), ("unsaid(Tensor x, Tensor(a!) y) -> ()", ())],
)
def test_an_argument_that_is_changed_is_marked_and_named(schema: str, mutates: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match=r"is said to change .*, and its schema marks "):
        register(schema, cuda=None, cpu=like_first, fake=like_first, mutates=mutates)


def test_an_operator_whose_kernel_awaits_a_gpu_runs_its_reference_until_it_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "AWAITING", {"awaits"})
    run = dispatch.on_cuda("awaits", lambda x: x + 1, lambda x: x - 1, counts_itself=False)
    assert run(torch.zeros(1)).item() == -1
    dispatch.try_awaiting()
    assert run(torch.zeros(1)).item() == 1


def test_an_operator_whose_kernel_awaits_a_gpu_counts_as_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "AWAITING", set())
    schema = "awaits_a_gpu(Tensor x) -> Tensor"
    register(schema, cuda=like_first, cpu=like_first, fake=like_first, awaits_gpu=True)
    assert not has_kernel("awaits_a_gpu")
    assert {"awaits_a_gpu"} == dispatch.AWAITING
