"""Random tensors for a case's inputs, the same ones each time and on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sm70_kernels.proof.subject import generator

if TYPE_CHECKING:
    from sm70_kernels.cases import Case


class Maker:
    """Makes a case's tensors, always the same ones."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self._generator = generator(case)
        self._device = device

    def normal(self, *shape: int, spread: float = 1.0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        """Return normally distributed numbers with a standard deviation of `spread`."""
        values = torch.randn(shape, generator=self._generator) * spread
        return values.to(dtype).to(self._device)

    def rows(self, tokens: int, width: int, gap: int, spread: float) -> torch.Tensor:
        """Return [tokens, width] with `gap` elements of something else between the rows."""
        return self.normal(tokens, width + gap, spread=spread)[:, :width]

    def whole(self, *shape: int, below: int) -> torch.Tensor:
        """Return whole numbers from 0 to `below`, itself excluded, as int64."""
        return torch.randint(below, shape, generator=self._generator).to(self._device)
