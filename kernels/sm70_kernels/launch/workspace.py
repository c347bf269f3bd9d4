"""Memory that operators need between their launches: one piece a device, whose users take turns (`launch.turns`)."""

from __future__ import annotations

import threading

import torch

from sm70_kernels import qwen38
from sm70_kernels.errors import KernelError

BYTES = qwen38.EXPANDED_BYTES
"""Who needs more works in several goes."""

_MADE: dict[torch.device, torch.Tensor] = {}
_MAKING = threading.Lock()


def reserve(device: torch.device) -> torch.Tensor:
    """Return a device's workspace, uint8[BYTES], made on the first call; do so before graphs are captured.

    `cuda` is the current device. It is no argument of the operators, because a compiled graph takes what it is given
    for an input. Raises KernelError when it would have to be made during a capture: it would lie in the graph's own
    memory, and be given to others with it.
    """
    place = (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )
    with _MAKING:
        if place not in _MADE:
            if place.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise KernelError(
                    "launch_failed:workspace",
                    f"the workspace of {place} is wanted during a graph capture and is not there: "
                    "call launch.workspace.reserve before",
                )
            _MADE[place] = torch.empty(BYTES, dtype=torch.uint8, device=place)
        return _MADE[place]


def reserved_bytes() -> int:
    """Return the bytes of all workspaces of this process."""
    return sum(each.nbytes for each in _MADE.values())
