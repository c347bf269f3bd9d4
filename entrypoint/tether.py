"""Run a command that dies with its parent: `python tether.py SIGNAL COMMAND...`.

A file of its own, because `preexec_fn` may deadlock in a parent that has threads, and because the program has to set
this in itself: PR_SET_PDEATHSIG survives execve. Standard library only, started with -I -S, so it costs 20 ms.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGNAL when the parent's thread that started this ends, then become COMMAND."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.Signals[sys.argv[1]]))
    if os.getppid() != parent:
        # The parent went between the two calls; its death is not announced any more.
        sys.exit(1)
    try:
        os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - argv comes from the plan, no shell is involved
    except OSError as error:
        print(f"{sys.argv[2]}: cannot be started: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
