"""How calls are timed, without a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from sm70_kernels import timing

if TYPE_CHECKING:
    import pytest


def test_the_first_calls_wait_for_what_made_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    warm = mock.Mock()
    warm.wait_stream.side_effect = lambda stream: done.append(f"waits for {stream}")
    stand_ins: dict[str, Any] = {
        "Stream": lambda: warm,
        "current_stream": lambda: "the caller's",
        "stream": lambda stream: nullcontext(),
        "graph": lambda graph: nullcontext(),
        "CUDAGraph": mock.Mock,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(timing, "elapsed_microseconds", lambda call: 10.0)
    assert timing.graph_microseconds([lambda: done.append("call")], launches=5) == 2.0
    assert done[:2] == ["waits for the caller's", "call"]
