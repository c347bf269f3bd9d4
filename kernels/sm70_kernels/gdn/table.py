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

VERIFY = Kernel(
    "gdn_verify",
    source="gdn/verify.cu",
    entry="gdn_verify",
    params="PPPPPPPPPPPPPPPiiiiiiqqqqqqq",
    constants=("THREADS", "COLUMNS", "ROWS"),
)

CHUNKS = Kernel(
    "gdn_chunks",
    source="gdn/chunks.cu",
    entry="gdn_chunks",
    params="PPPPPPPPPPPPiiiiiiiqqqqq",
    constants=("THREADS",),
)

PREFILL = Kernel(
    "gdn_prefill",
    source="gdn/prefill.cu",
    entry="gdn_prefill",
    params="PPPPPPPPPiiiiiiqqqq",
    constants=("THREADS",),
)

HEAD = qwen38.GDN_HEAD
"""Keys and values of a head, for which the kernels are written."""
WIDTH = qwen38.CONV_WIDTH

# Value columns of a block, and its threads. Few columns spread a short batch over all SMs; many read the inputs of a
# head less often. Chosen by prediction (kernels/MODEL.md), not timed on a V100.
_DECODE = ((16, 128), (32, 128), (64, 128))

# The same of a verification, by the most rows that it takes.
_VERIFY = {8: ((16, 128), (32, 128), (64, 128)), 16: ((16, 128), (32, 128))}

CHUNK = 64
"""Tokens of a sequence that a prefill takes at a time."""
CHUNK_COLUMNS = 16
"""Value columns of a block of its second kernel."""
MOST_GROUP = 8
"""Value heads on a key head, at most, of its first kernel."""

KEY_BYTES = 3 * CHUNK * HEAD * 2
"""Of a chunk and key head in the workspace between the two kernels (csrc/gdn/chunk.cuh)."""
VALUE_BYTES = (2 * CHUNK * CHUNK + CHUNK * HEAD) * 2 + 3 * CHUNK * 4
"""Of a chunk and value head there."""

TICKETS = 16384
"""Integers of a device by which blocks that share inputs find out which of them is the last to have read them."""


@cache
def fits(key_head: int, value_head: int, width: int) -> bool:
    """Say whether the kernels take heads of these elements and a convolution of this width."""
    return key_head == value_head == HEAD and width == WIDTH


@cache
def decode(heads: int) -> Specialisation:
    """Return the kernel for a decode step of `heads` value heads, all sequences together."""
    columns, threads = _columns(_DECODE, heads)
    return Specialisation(DECODE, {"THREADS": threads, "COLUMNS": columns})


@cache
def verify(rows: int, heads: int) -> Specialisation | None:
    """Return the kernel for up to `rows` rows a sequence and `heads` value heads in all, or None when it has none."""
    for most, widths in _VERIFY.items():
        if rows <= most:
            columns, threads = _columns(widths, heads)
            return Specialisation(VERIFY, {"THREADS": threads, "COLUMNS": columns, "ROWS": most})
    return None


def prefill_chunks(tokens: int, sequences: int) -> int:
    """Return how many chunks there are at most, whatever the sequences' lengths."""
    return tokens // CHUNK + sequences


def chunk_bytes(key_heads: int, heads: int) -> tuple[int, int]:
    """Return the bytes of a chunk in a prefill's workspace, for keys and for values."""
    return key_heads * KEY_BYTES, heads * VALUE_BYTES


def decode_tickets(key_heads: int) -> int:
    """Return how many tickets a sequence needs: for the queries and the keys of each key head."""
    return 2 * key_heads


def verify_tickets(key_heads: int, heads: int) -> int:
    """Return how many tickets a sequence needs: those of a decode step and one for each value head."""
    return 2 * key_heads + heads


def log_width(key_heads: int, heads: int) -> int:
    """Return the floats of a row of a slot's log: keys of each key head, writes and decay of each value head."""
    return (key_heads + heads) * HEAD + heads


def _columns(widths: tuple[tuple[int, int], ...], heads: int) -> tuple[int, int]:
    """Return the columns and threads of a block: the fewest columns whose blocks are not over four for each SM."""
    for columns, threads in widths:
        if heads * (HEAD // columns) <= 4 * SMS:
            return columns, threads
    return widths[-1]


_CHUNKS, _PREFILL = (Specialisation(kernel, {"THREADS": 256}) for kernel in (CHUNKS, PREFILL))


def prefill() -> tuple[Specialisation, Specialisation]:
    """Return the two kernels of a prefill, in their order."""
    return _CHUNKS, _PREFILL


SPECIALISATIONS = (
    _CHUNKS,
    _PREFILL,
    *(Specialisation(DECODE, {"THREADS": threads, "COLUMNS": columns}) for columns, threads in _DECODE),
    *(
        Specialisation(VERIFY, {"THREADS": threads, "COLUMNS": columns, "ROWS": rows})
        for rows, widths in _VERIFY.items()
        for columns, threads in widths
    ),
)
