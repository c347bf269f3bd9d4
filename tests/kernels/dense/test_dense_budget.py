"""What V100's truncating tensor cores take of the dense layers' error budget."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels import qwen38
from sm70_kernels.dense.budget import FP16_ROUNDING, bias, truncated_sum
from sm70_kernels.dense.cases import dense_layers
from sm70_kernels.dense.table import EXPAND_FROM, candidates, layer_of
from sm70_kernels.proof.subject import GATE


def test_a_step_aligns_cuts_and_rounds_toward_zero() -> None:
    low = 2.0**-24
    # Each of the four is cut before they are added, so together they are lost too.
    chain = torch.tensor([[1, 0, 0, 0, low, low, low, low], [-1, 0, 0, 0, -low, -low, -low, -low]], dtype=torch.float64)
    assert truncated_sum(chain).tolist() == [1, -1]
    kept = torch.tensor([[1, 0, 0, 0, 2 * low, 2 * low, 0, 0]], dtype=torch.float64)
    assert truncated_sum(kept).tolist() == [1 + 4 * low]


@pytest.mark.parametrize(("k", "parts", "published"), [(5120, 4, 1e-5), (17408, 1, 3.2e-4)])
def test_the_loss_of_one_sign_is_as_published_and_inside_its_bound(k: int, parts: int, published: float) -> None:
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(32, k // parts, generator=numbers).half()
    w = (20 * torch.randn(32, k // parts, generator=numbers)).to(torch.float8_e4m3fn)
    products = (x.double() * w.double()).abs()
    exact = products.sum(1)
    loss = (exact - truncated_sum(products)) / exact
    assert bool((loss >= 0).all())
    assert published / 3 < float(loss.mean()) < 1.1 * published
    assert float(loss.max()) < bias(k, parts)


@pytest.mark.parametrize("ranks", qwen38.RANKS)
def test_truncation_and_rounding_stay_inside_the_gate(ranks: int) -> None:
    for n, k, gated in dense_layers(ranks).values():
        layer = layer_of(n, k, gated)
        for rows in (1, 8, 16, 32, 64, 65, 512, EXPAND_FROM - 1):
            for tactic in candidates(layer, rows):
                assert bias(k, tactic.wk * tactic.split) + FP16_ROUNDING <= GATE, (n, k, rows, tactic)
