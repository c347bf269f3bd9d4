"""Which specialisation of the norms serves which row.

Width and alignment choose it. The number of tokens only says how many rows are taken at once, which changes no
bit of any row's result.
"""

from __future__ import annotations

from functools import cache

from sm70_kernels.registry import Kernel, Specialisation

RMS_NORM = Kernel(
    "rms_norm",
    source="norm/rms_norm.cu",
    entry="rms_norm",
    params="PPPPPiiqqf",
    constants=("THREADS", "VECTORS", "WIDTH", "RESIDUAL", "ROWS"),
)
GATED_RMS_NORM = Kernel(
    "gated_rms_norm",
    source="norm/gated_rms_norm.cu",
    entry="gated_rms_norm",
    params="PPPPiiqqqqf",
    constants=("THREADS", "LANES"),
)
QK_NORM_MROPE = Kernel(
    "qk_norm_mrope",
    source="norm/qk_norm_mrope.cu",
    entry="qk_norm_mrope",
    params="PPPPPPPPiiiiiiqqqqqf",
    constants=("THREADS", "LANES", "ROTARY"),
)
MANY_ROWS = 1024
"""From here on a block takes several rows: enough of them remain for every SM."""
ROWS = 2
"""Where no residual's bytes fill the waits of a row. Two rows leave room for as many blocks on an SM as one does."""

# A row of rms_norm: the widest row, then the block that owns it. Few threads with two vectors each keep several rows on
# an SM; a warp's second load is in flight with its first. Provenance: derived (docs/volta.md, "Bytes in
# flight": nine warp-wide 16-byte loads in flight for each SM), not timed on a V100.
#   width of an access   widest row   threads   vectors
_ROWS = (
    (8, 256, 32, 1),
    (8, 1024, 128, 1),
    (8, 2560, 160, 2),
    (8, 5120, 320, 2),
    (8, 8192, 512, 2),
    (8, 16384, 1024, 2),
    (1, 1024, 256, 4),
    (1, 8192, 512, 16),
)

ROTARY_HEADS = ((256, 64), (128, 128), (128, 64))
"""Head dimension and rotated part of what is built ahead: Qwen3.8-27B's, and the two commonest besides."""

GATED_HEADS = (64, 128, 256)
"""Head dimensions of the gated norm that are built ahead: Qwen3.8-27B has 128."""


@cache
def rms_norm(hidden: int, wide: bool, residual: int, many: bool = False) -> Specialisation | None:
    """Return the kernel for rows of `hidden`, or None when it has none.

    `wide` says that 16-byte accesses are allowed; `residual` is 0 for none, 1 for FP16, 2 for FP32; `many` says that
    there are `MANY_ROWS` rows.
    """
    for width, widest, threads, vectors in _ROWS:
        if (width == 8) == wide and hidden <= widest:
            constants = {"THREADS": threads, "VECTORS": vectors, "WIDTH": width, "RESIDUAL": residual}
            return Specialisation(RMS_NORM, constants | {"ROWS": ROWS if many and wide and not residual else 1})
    return None


@cache
def gated_rms_norm(head: int) -> Specialisation | None:
    """Return the kernel for heads of `head` elements, or None when their lanes do not fill a part of a warp."""
    lanes = head // 8
    if head % 8 or lanes not in (1, 2, 4, 8, 16, 32):
        return None
    return Specialisation(GATED_RMS_NORM, {"THREADS": 128, "LANES": lanes})


@cache
def qk_norm_mrope(head: int, rotary: int) -> Specialisation | None:
    """Return the kernel for heads of `head` elements of which `rotary` are turned, or None when it has none."""
    lanes = head // 16
    if head % 16 or rotary % 16 or lanes not in (1, 2, 4, 8, 16, 32) or not 0 < rotary <= head:
        return None
    return Specialisation(QK_NORM_MROPE, {"THREADS": 128, "LANES": lanes, "ROTARY": rotary})


def _built_ahead() -> tuple[Specialisation, ...]:
    rows = [
        *(rms_norm(widest, width == 8, residual) for width, widest, _, _ in _ROWS for residual in (0, 1, 2)),
        *(rms_norm(widest, True, 0, many=True) for width, widest, _, _ in _ROWS if width == 8),
    ]
    gated = [gated_rms_norm(head) for head in GATED_HEADS]
    rotary = [qk_norm_mrope(head, part) for head, part in ROTARY_HEADS]
    return tuple(spec for spec in (*rows, *gated, *rotary) if spec)


SPECIALISATIONS = _built_ahead()
