"""Memory that one launch at a time may use: a stream waits for the one before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm70_kernels.launch import turns
from sm70_kernels.launch.turns import Turn, in_turn

if TYPE_CHECKING:
    import torch


class OnGpu:
    """A tensor at an address of device 0."""

    def __init__(self, address: int) -> None:
        self.address = address

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.address


class Streams:
    """Stands in for the device: the current stream and its capture, and who was waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = Turn(0, 0)
        self.waits: list[tuple[int, int]] = []
        monkeypatch.setattr(turns, "_LAST", {})
        monkeypatch.setattr(turns, "_stream", lambda device: self.now.stream)
        monkeypatch.setattr(turns, "_capture", lambda device: self.now.capture)
        monkeypatch.setattr(turns, "_wait", lambda device, last: self.waits.append((self.now.stream, last.stream)))

    def use(self, address: int, stream: int, capture: int = 0) -> None:
        self.now = Turn(stream, capture)
        memory: torch.Tensor = OnGpu(address)
        with in_turn(memory):
            pass


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    return Streams(monkeypatch)


def test_a_stream_waits_for_the_one_that_used_the_same_memory_last(streams: Streams) -> None:
    for stream in (1, 1, 2, 2, 1):
        streams.use(16, stream)
    streams.use(32, 7)
    assert streams.waits == [(2, 1), (1, 2)]


def test_streams_wait_inside_a_capture_and_never_across_its_ends(streams: Streams) -> None:
    streams.use(16, 1)
    streams.use(16, 2, capture=5)
    streams.use(16, 3, capture=5)
    streams.use(16, 4, capture=6)
    streams.use(16, 1)
    assert streams.waits == [(3, 2)]
