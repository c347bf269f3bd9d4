"""Time small GPU calls as a decode step runs them: inside a graph, each on data that is no longer in L2."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

L2_MARGIN = 3
"""How many times the L2 cache the rotated arguments hold together, so that none is still in it when its turn comes."""


def rotations(bytes_of_one: int, device: torch.device, most: int = 64) -> int:
    """Return how many sets of arguments a timing rotates through: enough to leave L2, 2 at least, `most` at most.

    Small activations stay in L2 with `most` sets; so they do in a step, whose last kernel has just written them.
    """
    cache: int = torch.cuda.get_device_properties(device).L2_cache_size
    return min(max(2, -(-L2_MARGIN * cache // max(bytes_of_one, 1))), most)


def graph_microseconds(calls: Sequence[Callable[[], object]], launches: int = 200, replays: int = 7) -> float:
    """Return the median time of one call, in µs, of at least `launches` calls in turn inside one replayed graph."""
    rounds = -(-launches // len(calls))
    warm = torch.cuda.Stream()
    # The arguments may still be on their way on the caller's stream.
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for call in calls:
            call()
    warm.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Results are kept for a round: their memory would else be reused at once, and writes never leave L2.
    results: deque[object] = deque(maxlen=len(calls))
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                results.append(call())
    graph.replay()
    times = [elapsed_microseconds(graph.replay) for _ in range(replays)]
    return statistics.median(times) / (rounds * len(calls))


def host_microseconds(call: Callable[[], object], calls: int = 2000) -> float:
    """Return the time that one call takes of the host, in µs: the median of ten batches, the device kept busy apart."""
    batches = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls // 10):
            call()
        batches.append((time.perf_counter() - start) / (calls // 10))
    torch.cuda.synchronize()
    return statistics.median(batches) * 1e6


def copy_bandwidth(device: torch.device) -> float:
    """Return what a copy of 1 GiB moves on this device, in bytes a second, read and written bytes counted."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times = [elapsed_microseconds(lambda: target.copy_(source)) for _ in range(9)]
    return 2 * 2**30 / (statistics.median(times) * 1e-6)


def elapsed_microseconds(call: Callable[[], Any]) -> float:
    """Return the µs between an event before a call and one after it on the current stream; waits for the second."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return milliseconds * 1e3
