"""How a kernel can fail to be there, as one line for a person and one reason for a program."""

from __future__ import annotations


class KernelError(Exception):
    """A kernel cannot be built, loaded or launched.

    `str()` is one line: what is wrong, the value seen, what was wanted, what to do. `reason` is the stable word of the
    acceleration report, such as `operator_missing:rms_norm`.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def missing(kernel: str, text: str) -> KernelError:
    """Return the error for a kernel that this machine cannot have: absent, damaged, stale, or not made for its GPU."""
    return KernelError(f"operator_missing:{kernel}", text)
