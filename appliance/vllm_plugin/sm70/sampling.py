"""The route `top_k_top_p`: vLLM's sampler with our filter in place of its Triton kernel of 26,000 instructions.

vLLM would take that kernel from 8 rows on, and nothing would say so. What it draws from the filtered logits, and with
which generators, stays its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from appliance.vllm_plugin.sm70 import routes, sampling_filter
from appliance.vllm_plugin.sm70.counters import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from appliance.vllm_plugin.sm70.sampling_filter import Numbers, Plan

ROUTE = "top_k_top_p"

SELECTED, SORTED, UPSTREAM = (f"{ROUTE}.{path}" for path in ("selected_rows", "sorted_rows", "upstream_rows"))
"""Names under which rows are counted, by what became of them; rows that ask for neither k nor p are in none."""

logger = logging.getLogger("vllm.appliance.sampling")


class Filter:
    """Applies k and p by what the host knows of them, and counts the rows."""

    def __init__(self) -> None:
        self._of_requests: Plan | None = None
        self._of_tokens: Plan | None = None
        self._told = False

    def expect(self, top_k: Numbers, top_p: Numbers, vocabulary: int, drafts: Sequence[int] | None) -> None:
        """Take the host's k and p of each request for one step; `drafts` are each request's drafted tokens."""
        self._of_requests = sampling_filter.plan(top_k, top_p, vocabulary)
        if drafts is not None:
            each_k, each_p = np.repeat(top_k, drafts), np.repeat(top_p, drafts)
            self._of_tokens = sampling_filter.plan(each_k, each_p, vocabulary)

    def forget(self) -> None:
        """End a step: calls until the next one, as vLLM makes to measure memory, come without the host's knowledge."""
        self._of_requests = self._of_tokens = None

    def requests(self, logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
        """Filter logits [requests, vocabulary] in place."""
        return self._apply(logits, k, p, self._of_requests)

    def tokens(self, logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> torch.Tensor:
        """Filter logits [drafted tokens, vocabulary] in place; bears the signature of vLLM's `apply_top_k_top_p`."""
        return self._apply(logits, k, p, self._of_tokens)

    def _apply(
        self, logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None, known: Plan | None
    ) -> torch.Tensor:
        if k is None and p is None:
            return logits
        if known is None:
            return sampling_filter.apply(logits, k, p, sampling_filter.unknown(logits.shape[0]))
        COUNTERS.count(ROUTE)
        if known.selected.size:
            COUNTERS.count(SELECTED, known.selected.size)
        if known.sorted.size:
            COUNTERS.count(SORTED, known.sorted.size)
            self._tell(known.sorted.size)
        return sampling_filter.apply(logits, k, p, known)

    def _tell(self, rows: int) -> None:
        if not self._told:
            self._told = True
            logger.warning(
                "%d rows of a step ask for top_p without top_k, or for a top_k above %d: their whole vocabulary is "
                "sorted in each step, which is slow; a top_k of %d or less is selected (said once; counted as %s)",
                rows,
                sampling_filter.MOST_SELECTED,
                sampling_filter.MOST_SELECTED,
                SORTED,
            )


class Sm70TopKTopPSampler(TopKTopPSampler):  # type: ignore[misc]
    """vLLM's sampler, which gets logits that our filter went over."""

    def __init__(self, logprobs_mode: Any, rows: Filter) -> None:  # noqa: ANN401 - vLLM's LogprobsMode
        super().__init__(logprobs_mode)
        self.rows = rows
        # vLLM's constructor chose a method by the platform and keeps it in the instance.
        self.forward = self.filtered

    def filtered(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return a token int64[requests] of each row, and the filtered logits where they are asked for."""
        drawn: tuple[torch.Tensor, torch.Tensor | None] = self.forward_native(
            self.rows.requests(logits, k, p), generators, None, None
        )
        return drawn


def bind(runner: Any) -> Filter | None:  # noqa: ANN401 - vLLM's model runner
    """Put our filter into a runner's samplers and return it; None where the route is off and vLLM's own serves."""
    if routes.switched_off(ROUTE):
        return None
    rows = Filter()
    runner.sampler.topk_topp_sampler = Sm70TopKTopPSampler(runner.sampler.logprobs_mode, rows)
    # The rejection sampler filters the drafted tokens' rows in a function, by a name of its module.
    rejection_sampler.apply_top_k_top_p = rows.tokens
    return rows


def expect(rows: Filter | None, batch: Any, drafts: Sequence[int] | None) -> None:  # noqa: ANN401 - vLLM's InputBatch
    """Tell the filter what a step's requests ask for, from the copies that vLLM keeps on the host."""
    count = batch.num_reqs
    top_k, top_p = batch.top_k_cpu[:count], batch.top_p_cpu[:count]
    if rows is not None:
        rows.expect(top_k, top_p, batch.vocab_size, drafts)
    elif asked := int(np.count_nonzero((top_k < batch.vocab_size) | (top_p < 1))):
        COUNTERS.count(UPSTREAM, asked)
