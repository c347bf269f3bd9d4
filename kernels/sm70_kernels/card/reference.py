"""What the card's kernels compute, in plain torch; words are int32, sums are modulo 2^32."""

from __future__ import annotations

import torch

from sm70_kernels.lanes import ACCUMULATORS, HALVES, LANES, a_element, b_element, c_element

READS = 16
"""Of a thread in a trip of csrc/card/rate.cu."""
PRODUCTS = 32
"""Of a warp in a trip of csrc/card/tensor.cu."""


def words(sums: torch.Tensor) -> torch.Tensor:
    """Return int64 sums modulo 2^32 as int32."""
    return ((sums + 2**31) % 2**32 - 2**31).int()


def card_empty(count: int, device: torch.device) -> torch.Tensor:
    """Return 0, 1, … as float32 [count]."""
    return torch.arange(count, device=device).float()


def card_read(x: torch.Tensor) -> torch.Tensor:
    """Return int32 [threads]: all words that each thread reads, of int32 [rounds, loads, threads, 4]."""
    return words(x.long().sum((0, 1, 3)))


def card_latency(x: torch.Tensor, _space: int, steps: int, stride: int, mask: int) -> torch.Tensor:
    """Return int32 [32]: where each lane is after its steps through the words `x`. The memory changes nothing here."""
    lane = torch.arange(LANES, device=x.device)
    at = torch.zeros_like(lane)
    for _ in range(steps):
        at = (at + stride + x[at // 4 + lane].long()) & mask
    return words(at)


def card_rate(x: torch.Tensor, space: int, trips: int, threads: int) -> torch.Tensor:
    """Return int32 [threads]: the words that each lane reads in all trips, a word (shared) or four (L1) at a time."""
    each = 1 if space == 2 else 4
    size = READS * LANES * each
    starts = [0 if space == 2 else trip % 4 * 512 for trip in range(trips)]
    every = torch.stack([x[start : start + size] for start in starts]).long()
    return words(every.view(-1, LANES, each).sum((0, 2))).repeat(threads // LANES)


def card_tensor(x: torch.Tensor, _chains: int, trips: int) -> torch.Tensor:
    """Return float [threads]: the sums of each thread's accumulators, which are C of four products a warp.

    `x` is [threads, 8] of FP16: a lane's four halves of A, then of B. Chains change only the order of sums.
    """
    warps = x.double().view(-1, LANES, 2, HALVES)
    a, b = (torch.zeros(warps.shape[0], 4, *shape, dtype=torch.float64, device=x.device) for shape in ((8, 4), (4, 8)))
    out = torch.zeros(warps.shape[:2], dtype=torch.float64, device=x.device)
    for lane in range(LANES):
        for half in range(HALVES):
            a[:, *a_element(lane, half)] = warps[:, lane, 0, half]
            b[:, *b_element(lane, half)] = warps[:, lane, 1, half]
    c = a @ b * (PRODUCTS * trips)
    for lane in range(LANES):
        for register in range(ACCUMULATORS):
            out[:, lane] += c[:, *c_element(lane, register)]
    return out.view(-1)


def card_barrier(rounds: int, threads: int, device: torch.device) -> torch.Tensor:
    """Return int32 [threads] of `rounds`."""
    return torch.full((threads,), rounds, dtype=torch.int32, device=device)


def card_fetch(start: torch.Tensor, a: float, b: float, odd: int, steps: int) -> torch.Tensor:
    """Return 4 * (x + y % 256) by thread after so many steps of each of four equal chains from `start` on."""
    x, y = start.double(), start.long()
    for _ in range(steps):
        x, y = x * a + b, (2 * y + odd) & 255
    return 4 * (x + y)
