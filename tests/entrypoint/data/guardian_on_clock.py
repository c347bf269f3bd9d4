"""The guardian on a clock that a test moves: `guardian_on_clock.py FILE` adds the seconds in FILE to the host's."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from entrypoint import guardian

AHEAD = Path(sys.argv[1])
_of_the_host = time.clock_gettime


def clock_gettime(clock: int) -> float:
    """Seconds on `clock`, and those in the file."""
    return _of_the_host(clock) + float(AHEAD.read_text())


time.clock_gettime = clock_gettime
sys.exit(guardian.main())
