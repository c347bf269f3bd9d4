"""Stands in for `launch` in an operator's module, to see what it would launch on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from types import ModuleType

    import pytest


class Launches(list[tuple[Any, ...]]):
    """What the operators of `module` would have launched: specialisation, grid and arguments of each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        super().__init__()
        monkeypatch.setattr(module, "launch", lambda *given: self.append(given))

    @property
    def names(self) -> list[str]:
        """The specialisations' names."""
        return [spec.name for spec, *_ in self]


def halves(*shape: int) -> torch.Tensor:
    """Return FP16 zeros."""
    return torch.zeros(shape, dtype=torch.float16)
