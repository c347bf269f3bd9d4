"""The two ways a person's request can fail. Both print one line and set the exit status; neither shows a traceback."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class ApplianceError(Exception):
    """Base: its text is one line saying what is wrong, the value seen, what was wanted and what to do."""

    exit_status: ClassVar[int] = 1


class CheckError(ApplianceError):
    """A check of this machine, of a file or of the running engine failed (exit status 1)."""


class ConfigurationError(ApplianceError):
    """A file, variable or argument that a person wrote is wrong (exit status 2)."""

    exit_status: ClassVar[int] = 2


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "X"?` for the closest of `known`, or an empty string when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""
