"""What V100's tensor cores add to a dense layer's error, beside the one rounding of its result.

They align a product's four terms and the accumulator to the greatest exponent, cut what lies below its 24 bits, and
round the sum toward zero (Fasi et al. 2021, PeerJ CS 330): sums come out too small, and the more so the longer a chain.
The GPUs that this suite runs on elsewhere round otherwise, so this part of the error is computed, not seen there.
"""

from __future__ import annotations

import torch

FP16_ROUNDING = 2.0**-11 / 3**0.5
"""Of one rounding to FP16 as a gate counts it, by norms: even errors within half a unit of results just above 2^n."""

MANTISSA = 24
TERMS = 4
"""Products that one step of m8n8k4 adds to its accumulator."""


def truncated_sum(products: torch.Tensor) -> torch.Tensor:
    """Return the sums of FP64 [rows, terms] along the last dimension, as a chain of V100's steps makes them.

    `terms` is a multiple of four.
    """
    steps = products.unflatten(-1, (-1, TERMS))
    total = products.new_zeros(products.shape[0])
    for number in range(steps.shape[1]):
        addends = torch.cat((total[:, None], steps[:, number]), dim=1)
        exponent = torch.frexp(addends).exponent.amax(dim=1, keepdim=True)
        total = _cut(_cut(addends, exponent).sum(dim=1))
    return total


def _cut(values: torch.Tensor, exponent: torch.Tensor | None = None) -> torch.Tensor:
    """Return values without what lies below 24 bits of 2^exponent, by default of their own: toward zero."""
    scale = torch.frexp(values).exponent if exponent is None else exponent
    return torch.ldexp(torch.trunc(torch.ldexp(values, MANTISSA - scale)), scale - MANTISSA)


def bias(k: int, parts: int) -> float:
    """Return a bound of the relative loss of a sum of K products of one sign, cut into so many parts.

    A step of four products loses at most about a unit of 24 bits for each of them from an accumulator that grows to its
    end. Computed with `truncated_sum`, normal numbers: 8e-6 for K = 5120 in 4 parts, 3.1e-4 for 17408 in one.
    """
    return k / parts * 2.0 ** -(MANTISSA + 1)
