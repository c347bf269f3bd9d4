"""The memory between an operator's launches: one piece a device, never made inside a graph."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.errors import KernelError
from sm70_kernels.launch import workspace


def test_the_workspace_is_made_once_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_MADE", {})
    monkeypatch.setattr(workspace, "BYTES", 4096)
    made = workspace.reserve(torch.device("cpu"))
    assert made.numel() * made.element_size() == 4096 == workspace.reserved_bytes()
    assert workspace.reserve(torch.device("cpu")) is made


def test_the_workspace_of_the_current_device_is_that_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_MADE", {torch.device("cuda:1"): torch.zeros(1)})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert workspace.reserve(torch.device("cuda")) is workspace.reserve(torch.device("cuda:1"))


def test_no_workspace_is_made_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_MADE", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(KernelError, match="the workspace of cuda:0 is wanted during a graph capture"):
        workspace.reserve(torch.device("cuda:0"))
