"""Top-k and top-p as a threshold for each row, out of torch's own selection and sort.

Probabilities are summed as integers, so that no order of additions changes a result: the same logits keep the same
tokens in any batch and on any card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Numbers = npt.NDArray[Any]

MOST_SELECTED = 1024
"""Rows with a greater k, and rows with top-p alone, are sorted whole."""

SELECTED_ROWS = 64
SORTED_ROWS = 8
"""Rows at a time. A sort holds about 60 bytes for each logit: 120 MB for 8 rows of 248,320."""

ONE = float(1 << 40)
"""Weight of a row's greatest logit. 2^18 of them fit into an int64; a weight below 1 is a probability below 1e-12."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with each row of a batch: `selected` by torch.topk of `most` values, `sorted`, or left as it is."""

    selected: Numbers
    sorted: Numbers
    most: int
    rows: int


def plan(top_k: Numbers, top_p: Numbers, vocabulary: int) -> Plan:
    """Sort the rows by what their k int[rows] and p float[rows] ask for; k = vocabulary and p = 1 ask for nothing."""
    small = top_k <= min(MOST_SELECTED, vocabulary - 1)
    asked = (top_k < vocabulary) | (top_p < 1)
    selected = np.flatnonzero(small)
    most = int(top_k[selected].max()) if selected.size else 0
    return Plan(selected, np.flatnonzero(asked & ~small), most, int(top_k.shape[0]))


def unknown(rows: int) -> Plan:
    """Return the plan for rows whose k and p only the device knows."""
    return Plan(np.zeros(0, dtype=np.int64), np.arange(rows), 0, rows)


def apply(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None, what: Plan) -> torch.Tensor:
    """Put -inf into logits float32 [rows, vocabulary], in place, where k int[rows] and p float[rows] leave a token out.

    Of equal logits at the k-th place all stay; of equal logits at the end of p those with the higher index stay, as in
    vLLM's sort. A row with NaN comes to nothing but itself. Nothing here waits for the GPU. Raises ValueError where
    the plan is for another number of rows.
    """
    if logits.shape[0] != what.rows:
        raise ValueError(f"{logits.shape[0]} rows of logits, and k and p of {what.rows}; wanted are as many")
    if k is None and p is None:
        return logits
    for rows in _chunks(what.selected, SELECTED_ROWS):
        _over(logits, k, p, rows, what.most)
    for rows in _chunks(what.sorted, SORTED_ROWS):
        _over(logits, k, p, rows, None)
    return logits


def _chunks(rows: Numbers, size: int) -> Iterator[Numbers]:
    for first in range(0, rows.size, size):
        yield rows[first : first + size]


def _over(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None, rows: Numbers, most: int | None
) -> None:
    """Filter some rows: by a selection of `most` values, or by a sort where that is None."""
    first, last = int(rows[0]), int(rows[-1])
    at: slice | torch.Tensor
    if last - first + 1 == rows.size:
        at = slice(first, last + 1)
        part = logits[at]
    else:
        at = _to_device(rows, logits.device)
        part = logits.index_select(0, at)
    own_k, own_p = (None if x is None else x[at] for x in (k, p))
    if most is None:
        _by_sort(part, own_k, own_p)
    else:
        assert own_k is not None
        _by_selection(part, own_k, own_p, most)
    if isinstance(at, torch.Tensor):
        logits.index_copy_(0, at, part)


def _by_selection(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor | None, most: int) -> None:
    values = logits.topk(most, dim=-1).values
    kth = values.gather(1, k.long().unsqueeze(1) - 1)
    if p is None:
        logits.masked_fill_(logits < kth, -torch.inf)
        return
    # Logits were FP16 once: often more of them equal the k-th than the selection holds.
    equal = (logits == kth).sum(1, keepdim=True) - (values == kth).sum(1, keepdim=True)
    _keep(logits, *cut(values, kth, equal, p))


def _by_sort(logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None) -> None:
    values = logits.sort(dim=-1, descending=True).values
    kth = values[:, -1:] if k is None else values.gather(1, k.long().unsqueeze(1) - 1)
    if p is None:
        logits.masked_fill_(logits < kth, -torch.inf)
        return
    _keep(logits, *cut(values, kth, torch.zeros_like(kth, dtype=torch.int64), p))


def cut(
    values: torch.Tensor, kth: torch.Tensor, equal: torch.Tensor, p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least value [rows, 1] that top-p keeps, and how many of those equal to it [rows, 1] it keeps.

    `values` [rows, n] fall, and hold all that is greater than the k-th value `kth` [rows, 1]; `equal` int64 [rows, 1]
    logits of its value are not among them. A token stays where those above it have less than p together.
    """
    inside = values >= kth
    weights = ((values - values[:, :1]).exp_() * ONE).to(torch.int64).masked_fill_(~inside, 0)
    at_kth = ((kth - values[:, :1]).exp_() * ONE).to(torch.int64)
    above = weights.cumsum(1)
    of_values = above[:, -1:].clone()
    above -= weights
    total = of_values + equal * at_kth
    p = p.unsqueeze(1)
    # 1 - p as vLLM's sort has it, in float32.
    needed = (total - ((1 - p).double() * total).to(torch.int64)).clamp_(min=1)
    # At p = 1 a token stays even where its weight is none.
    needed = torch.where(p >= 1, total + equal + 1, needed)
    kept = inside & (above < needed)
    least = values.gather(1, kept.sum(1, keepdim=True).clamp_(min=1) - 1)
    step = at_kth.clamp(min=1)
    further = torch.div(needed - of_values + step - 1, step, rounding_mode="floor")
    further = torch.minimum(further.clamp_(min=0), equal)
    return least, ((values == least) & kept).sum(1, keepdim=True) + further


def _keep(logits: torch.Tensor, least: torch.Tensor, count: torch.Tensor) -> None:
    """Leave of each row what is greater than `least`, and the last `count` of what equals it."""
    equal = logits == least
    place = equal.cumsum(1, dtype=torch.int32)
    kept = equal.logical_and_(place > place[:, -1:] - count).logical_or_(logits > least)
    logits.masked_fill_(kept.logical_not_(), -torch.inf)


def _to_device(rows: Numbers, device: torch.device) -> torch.Tensor:
    on_host = torch.from_numpy(rows)
    # From pinned memory the copy is queued; from other memory it would wait for all that was queued before.
    return on_host if device.type == "cpu" else on_host.pin_memory().to(device, non_blocking=True)
