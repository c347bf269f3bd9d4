"""A text file that a reader sees whole: the old one or the new one."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replace `path` by `text`, written under a temporary name. Raises OSError; the old file then stands."""
    temporary = path.parent / f".{path.name}.{os.getpid()}"
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
