"""The card's kernels under proof: what they compute. The cycles that they count are no result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from sm70_kernels.card import reference, table
from sm70_kernels.launch import launch
from sm70_kernels.launch.outputs import new
from sm70_kernels.proof.inputs import Maker
from sm70_kernels.proof.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm70_kernels.cases import Case
    from sm70_kernels.registry import Specialisation

BLOCKS = 3
"""Of a reading kernel under proof."""
MASK = 2047


def _spec(kernel: str, **constants: int) -> Specialisation:
    """Return the specialisation with these constants."""
    return next(
        spec
        for spec in table.SPECIALISATIONS
        if spec.kernel.name == kernel and constants.items() <= spec.constants.items()
    )


def _words(make: Maker, *shape: int) -> torch.Tensor:
    return (make.whole(*shape, below=2**32) - 2**31).int()


def counters(spec: Specialisation, device: torch.device) -> torch.Tensor:
    """Return int64 for the cycles of each warp of a block."""
    return torch.zeros(spec.threads // 32, dtype=torch.int64, device=device)


def _empty(count: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return reference.card_empty(count, device)
    out = new((count,), torch.float32, device)
    launch(table.EMPTY, -(-count // table.EMPTY.threads), (out, count))
    return out


def _read(x: torch.Tensor) -> torch.Tensor:
    if x.device.type == "cpu":
        return reference.card_read(x)
    rounds, loads, threads, _ = x.shape
    out = new((threads,), torch.int32, x.device)
    launch(_spec("card_read", LOADS=loads, THREADS=threads // BLOCKS), BLOCKS, (out, x, rounds))
    return out


def _latency(x: torch.Tensor, space: int, steps: int, stride: int, mask: int) -> torch.Tensor:
    if x.device.type == "cpu":
        return reference.card_latency(x, space, steps, stride, mask)
    spec = _spec("card_latency", SPACE=space)
    out = new((32,), torch.int32, x.device)
    launch(spec, 1, (out, counters(spec, x.device), x, steps, stride, mask))
    return out


def _rate(x: torch.Tensor, space: int, trips: int, threads: int) -> torch.Tensor:
    if x.device.type == "cpu":
        return reference.card_rate(x, space, trips, threads)
    spec = _spec("card_rate", SPACE=space)
    out = new((threads,), torch.int32, x.device)
    launch(spec, 1, (out, counters(spec, x.device), x, trips))
    return out


def _tensor(x: torch.Tensor, chains: int, trips: int) -> torch.Tensor:
    if x.device.type == "cpu":
        return reference.card_tensor(x, chains, trips).float()
    spec = _spec("card_tensor", CHAINS=chains)
    out = new((x.shape[0],), torch.float32, x.device)
    launch(spec, 1, (out, counters(spec, x.device), x, trips))
    return out


def _barrier(rounds: int, threads: int, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return reference.card_barrier(rounds, threads, device)
    out = new((threads,), torch.int32, device)
    launch(table.BARRIER, 1, (out, counters(table.BARRIER, device), rounds))
    return out


def _fetch(start: torch.Tensor, a: float, b: float, odd: int, steps: int) -> torch.Tensor:
    if start.device.type == "cpu":
        return reference.card_fetch(start, a, b, odd, steps).float()
    out = new(start.shape, torch.float32, start.device)
    trips = 4 * steps // table.FETCH.constants["PAIRS"]
    launch(table.FETCH, 1, (out, counters(table.FETCH, start.device), a, b, odd, trips))
    return out


def _latency_inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    # Words by which every step stays on a multiple of four bytes.
    chain = 4 * Maker(case, device).whole(1024, below=512).int()
    return chain, case.sizes["space"], case.sizes["steps"], case.sizes["stride"], MASK


def _read_inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    sizes = case.sizes
    return (_words(Maker(case, device), sizes["rounds"], sizes["in_flight"], BLOCKS * sizes["threads"], 4),)


def _rate_inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    space = case.sizes["space"]
    threads = _spec("card_rate", SPACE=space).threads
    return _words(Maker(case, device), 4096), space, case.sizes["trips"], threads


def _tensor_inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    x = Maker(case, device).normal(table.TENSOR_RATE.threads, 8)
    return x, case.sizes["chains"], case.sizes["trips"]


def _fetch_inputs(case: Case, device: torch.device) -> tuple[Any, ...]:
    steps = case.sizes["trips"] * table.FETCH.constants["PAIRS"] // 4
    return torch.arange(table.FETCH.threads, device=device), 0.5, 1.25, 3, steps


def _subject(
    run: Callable[..., torch.Tensor], inputs: Callable[[Case, torch.device], tuple[Any, ...]], gate: float = 0.0
) -> Subject:
    name = f"card{run.__name__}"
    return Subject(name, (name,), inputs, run, getattr(reference, name), lambda _: 1 << 14, gate)


SUBJECTS = (
    _subject(_empty, lambda case, device: (case.sizes["count"], device)),
    _subject(_read, _read_inputs),
    _subject(_latency, _latency_inputs),
    _subject(_rate, _rate_inputs),
    # FP32 sums of up to 96 products.
    _subject(_tensor, _tensor_inputs, 1e-5),
    _subject(_barrier, lambda case, device: (case.sizes["rounds"], table.BARRIER.threads, device)),
    _subject(_fetch, _fetch_inputs, 1e-6),
)
