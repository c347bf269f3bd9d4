"""Which specialisation of the gated delta net serves which batch. The width of a block changes no bit of a result."""

from __future__ import annotations

from functools import cache

from sm70_kernels import qwen38
from sm70_kernels.hardware import SMS
from sm70_kernels.registry import Kernel, Specialisation

DECODE = Kernel(
    "gdn_decode",
    source="gdn/decode.cu",
    entry="gdn_decode",
    params="PPPPPPPPPPPiiiiqqqqqq",
    constants=("THREADS", "COLUMNS"),
)

HEAD = qwen38.GDN_HEAD
"""Keys and values of a head, for which the kernels are written."""
WIDTH = qwen38.CONV_WIDTH

# Value columns of a block, and its threads. Few columns spread a short batch over all SMs; many read the inputs of a
# head less often. Chosen by prediction (kernels/MODEL.md), not timed on a V100.
_DECODE = ((16, 128), (32, 128), (64, 128))

TICKETS = 16384
"""Integers of a device that count the blocks of a key head: two for each sequence and key head."""


@cache
def fits(key_head: int, value_head: int, width: int) -> bool:
    """Say whether the kernels take heads of these elements and a convolution of this width."""
    return key_head == value_head == HEAD and width == WIDTH


@cache
def decode(heads: int) -> Specialisation:
    """Return the kernel for a decode step of `heads` value heads, all sequences together."""
    for columns, threads in _DECODE:
        if heads * (HEAD // columns) <= 4 * SMS:
            return Specialisation(DECODE, {"THREADS": threads, "COLUMNS": columns})
    columns, threads = _DECODE[-1]
    return Specialisation(DECODE, {"THREADS": threads, "COLUMNS": columns})


SPECIALISATIONS = tuple(
    Specialisation(DECODE, {"THREADS": threads, "COLUMNS": columns}) for columns, threads in _DECODE
)
