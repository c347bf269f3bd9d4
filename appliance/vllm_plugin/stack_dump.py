"""Stacks of a hung or crashed process, out of any state: the handler is in C and needs neither the GIL nor the loop."""

from __future__ import annotations

import faulthandler
import signal

SIGNAL = signal.SIGUSR2
"""Free in vLLM 0.19.1, which handles SIGINT and SIGTERM only. Its default action ends a process: send it only to one
that catches it."""


def dump_on_signal() -> None:
    """Let fatal signals and SIGNAL write the stacks of all threads to file descriptor 2. Can be called again."""
    # A number, since vLLM replaces what sys.stderr writes with.
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(SIGNAL, file=2, all_threads=True)
