"""What an operator changes is said twice, and both must agree."""

from __future__ import annotations

import pytest

from sm70_kernels.torch_library import like_first, register


@pytest.mark.parametrize(
    ("schema", "mutates"),
    [("said(Tensor x, Tensor y) -> ()", ("y",)), ("unsaid(Tensor x, Tensor(a!) y) -> ()", ())],
)
def test_an_argument_that_is_changed_is_marked_and_named(schema: str, mutates: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match=r"is said to change .*, and its schema marks "):
        register(schema, cuda=None, cpu=like_first, fake=like_first, mutates=mutates)
