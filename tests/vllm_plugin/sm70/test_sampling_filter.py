"""The filter for top-k and top-p leaves what vLLM's own sort leaves, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from appliance.vllm_plugin.sm70 import sampling_filter
from appliance.vllm_plugin.sm70.sampling_filter import apply, plan, unknown

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

VOCABULARY = 4000


SORT = torch.Tensor.sort


def of_vllm(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
    """Filter by vLLM's sort, with equal logits in the order of their indices: torch's sort on a CPU has them in any."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "sort", lambda self, **rest: SORT(self, stable=True, **rest))
        kept: torch.Tensor = apply_top_k_top_p_pytorch(logits.clone(), k, p)
    return kept


def ours(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
    rows, vocabulary = logits.shape
    top_k = np.full(rows, vocabulary, dtype=np.int32) if k is None else k.numpy()
    top_p = np.ones(rows, dtype=np.float32) if p is None else p.numpy()
    return apply(logits.clone(), k, p, plan(top_k, top_p, vocabulary))


def spread(rows: int, seed: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Logits as a model's: float16 once, so that many are equal, over a temperature."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocabulary, generator=generator) * 3).half().float() / 0.7


def mixed(rows: int, seed: int, vocabulary: int = VOCABULARY) -> tuple[torch.Tensor, torch.Tensor]:
    """k and p of a batch in which each row asks for something else, some for nothing."""
    chosen = np.random.default_rng(seed)
    k = chosen.choice([1, 2, 20, 50, 1024, 1025, vocabulary - 1, vocabulary], rows).astype(np.int32)
    p = chosen.choice([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1.0], rows).astype(np.float32)
    return torch.from_numpy(k), torch.from_numpy(p)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("which", ["both", "k alone", "p alone"])
def test_mixed_batches_keep_what_vllms_sort_keeps(which: str, seed: int) -> None:
    logits = spread(40, seed)
    k, p = mixed(40, seed)
    asked = {"both": (k, p), "k alone": (k, None), "p alone": (None, p)}[which]
    assert torch.equal(ours(logits, *asked), of_vllm(logits, *asked))


@pytest.mark.parametrize("seed", range(3))
def test_the_whole_vocabulary_of_the_model(seed: int) -> None:
    logits = spread(3, seed, 248320)
    k = torch.tensor([20, 248320, 1024], dtype=torch.int32)
    p = torch.tensor([0.95, 0.8, 0.99])
    # In float64: of so many small probabilities float32 sums lose the last of those that belong to p.
    wanted = of_vllm(logits.double(), k, p.double())
    assert torch.equal(ours(logits, k, p).isfinite(), wanted.isfinite())


@pytest.mark.parametrize("k", [3, VOCABULARY])
@pytest.mark.parametrize("p", [0.00013, 0.3001, 0.7003, 1.0])
def test_equal_logits(k: int, p: float) -> None:
    """More of them than k, at the k-th place, and at the end of p."""
    logits = torch.full((4, VOCABULARY), -torch.inf)
    logits[0] = 0.0
    logits[1, ::7] = 2.0
    logits[2] = -9.0
    logits[2, 10:12] = 5.0
    logits[3] = torch.arange(VOCABULARY) // 40 / 50
    rows_k, rows_p = torch.full((4,), k, dtype=torch.int32), torch.full((4,), p)
    wanted = of_vllm(logits.double(), rows_k, rows_p.double())
    assert torch.equal(ours(logits, rows_k, rows_p).double(), wanted)


@pytest.mark.parametrize(("p", "kept"), [(0.25, [3999]), (0.5, [900, 3999]), (0.75, [40, 900, 3999]), (0.76, None)])
def test_a_token_stays_where_those_above_it_have_less_than_p(p: float, kept: list[int] | None) -> None:
    """Probabilities of a quarter each, whose sums meet p exactly."""
    logits = torch.full((1, VOCABULARY), -torch.inf)
    every = [5, 40, 900, 3999]
    logits[0, every] = 1.0
    for k in (20, VOCABULARY):
        rows_k, rows_p = torch.full((1,), k, dtype=torch.int32), torch.full((1,), p)
        got = ours(logits, rows_k, rows_p)
        assert got[0].isfinite().nonzero().flatten().tolist() == (kept or every)
        assert torch.equal(got, of_vllm(logits, rows_k, rows_p))


def test_more_equal_logits_than_the_selection_holds_count_in_the_probabilities() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 7] = 3.0
    k = torch.tensor([2], dtype=torch.int32)
    # The greatest has e³ of e³ + 3999: with p below its share it stays alone.
    share = float(np.exp(3) / (np.exp(3) + VOCABULARY - 1))
    alone = ours(logits, k, torch.tensor([0.99 * share]))
    assert alone.isfinite().nonzero().tolist() == [[0, 7]]
    half = ours(logits, k, torch.tensor([0.5]))
    assert torch.equal(half, of_vllm(logits, k, torch.tensor([0.5])))
    assert 1900 < int(half.isfinite().sum()) < 2000


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("k", [20, VOCABULARY])
def test_a_broken_row_harms_no_other_and_ends(bad: float, k: int) -> None:
    logits = spread(3, 0)
    logits[1, 4] = bad
    rows_k, p = torch.full((3,), k, dtype=torch.int32), torch.full((3,), 0.9)
    got, wanted = ours(logits, rows_k, p), of_vllm(logits, rows_k, p)
    assert torch.equal(got[[0, 2]], wanted[[0, 2]])
    logits[1] = torch.nan
    assert torch.equal(ours(logits, rows_k, p)[[0, 2]], wanted[[0, 2]])


def test_a_row_that_masks_emptied_below_k() -> None:
    """A grammar may leave fewer tokens than k."""
    logits = torch.full((1, VOCABULARY), -torch.inf)
    logits[0, [3, 8]] = torch.tensor([1.0, 2.0])
    k = torch.tensor([20], dtype=torch.int32)
    for p in (0.1, 0.99, 1.0):
        assert torch.equal(ours(logits, k, torch.tensor([p])), of_vllm(logits, k, torch.tensor([p])))


def test_a_row_is_filtered_alike_in_any_batch_and_by_either_path(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = spread(21, 4)
    k = torch.full((21,), 50, dtype=torch.int32)
    p = torch.full((21,), 0.9)
    together = ours(logits, k, p)
    alone = torch.cat([ours(logits[row : row + 1], k[:1], p[:1]) for row in range(21)])
    assert torch.equal(together, alone)
    assert torch.equal(apply(logits.clone(), k, p, unknown(21)), together)
    monkeypatch.setattr(sampling_filter, "SELECTED_ROWS", 4)
    assert torch.equal(ours(logits, k, p), together)


def test_rows_are_sent_where_they_cost_least() -> None:
    top_k = np.array([VOCABULARY, 20, VOCABULARY, 1025, 1024])
    top_p = np.array([1.0, 1.0, 0.9, 1.0, 0.5])
    found = plan(top_k, top_p, VOCABULARY)
    assert (found.selected.tolist(), found.sorted.tolist(), found.most, found.rows) == ([1, 4], [2, 3], 1024, 5)
    nothing = plan(top_k[:1], top_p[:1], VOCABULARY)
    assert (nothing.selected.size, nothing.sorted.size) == (0, 0)
    # A vocabulary that is no greater than the most that is selected.
    assert plan(np.array([100, 99]), np.ones(2), 100).selected.tolist() == [1]


def test_a_plan_for_other_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"3 rows of logits, and k and p of 2; wanted are as many"):
        apply(torch.zeros(3, 9), torch.ones(3), None, unknown(2))


@pytest.mark.parametrize("rows", [2, 9, 32])
def test_memory_does_not_grow_with_the_rows_of_a_sort(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noted(self: torch.Tensor, **rest: object) -> object:
        seen.append(self.shape[0])
        return SORT(self, **rest)

    monkeypatch.setattr(torch.Tensor, "sort", noted)
    apply(spread(rows, 1), None, torch.full((rows,), 0.9), unknown(rows))
    assert sum(seen) == rows
    assert max(seen) <= sampling_filter.SORTED_ROWS
