"""Memory that one launch at a time may use, taken in turns by the streams that come for it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Turn(NamedTuple):
    """Who used memory last: a stream's handle, and the graph capture it was in (0: none)."""

    stream: int
    capture: int


_LAST: dict[tuple[int, int], Turn] = {}
"""By device and address. Memory that was freed and given to another use waits once for nothing."""

_LOCK = threading.RLock()


@contextlib.contextmanager
def in_turn(memory: torch.Tensor) -> Iterator[None]:
    """Let the current stream of the memory's device wait for the stream that used it last, and be the last itself.

    What is launched inside may use `memory`, from any thread and any stream. Replays are not seen: whoever replays a
    graph beside other work on the same memory sets the two in order, as for any tensor that a graph writes.
    """
    device = memory.get_device()
    if device < 0:
        yield
        return
    with _LOCK:
        now = Turn(_stream(device), _capture(device))
        place = (device, memory.data_ptr())
        last = _LAST.get(place)
        if last != now:
            _LAST[place] = now
            # Before a capture the device is waited for, and no event may go in or out of one.
            if last is not None and last.stream != now.stream and last.capture == now.capture:
                _wait(device, last)
        yield


def _stream(device: int) -> int:
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


def _capture(device: int) -> int:
    """Return the number of the capture that the current stream is in, 0 for none."""
    if not _capturing(device):
        return 0
    from cuda.bindings import driver

    found = driver.cuStreamGetCaptureInfo(_stream(device))
    return int(found[2])


def _capturing(device: int) -> bool:
    if torch._C._cuda_getDevice() == device:
        return bool(torch.cuda.is_current_stream_capturing())
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())


def _wait(device: int, last: Turn) -> None:
    """Let the current stream wait for what is on the last one now."""
    before = torch.cuda.ExternalStream(last.stream, device=device)
    with torch.cuda.stream(before):
        # It may have gone into a capture since, before which the device was waited for.
        if _capture(device) != last.capture:
            return
    torch.cuda.current_stream(device).wait_stream(before)
