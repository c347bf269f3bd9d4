"""The engine as the guardian sees it: a process tree whose output is relayed and read."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoint import processes
from entrypoint.milestones import Errors, Line, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psutil

_LONGEST = 64 * 1024  # bytes of an unfinished line that are kept for reading; the relay cuts at its own length


class Engine:
    """One start of the engine. Its standard output and error are one stream, copied unchanged to `out`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], out: int) -> None:
        """Start `command` in a session of its own, so that a terminal's Ctrl-C reaches only the entrypoint.

        Raises OSError when no process can be started.
        """
        self.errors = Errors()
        self._lines: deque[Line] = deque(maxlen=10_000)
        self._out = out
        self.process = subprocess.Popen(
            processes.tethered(list(command)),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # A thread, so that a reader of the log who stands still blocks the engine's log, not the watchdog.
        self._reader = threading.Thread(target=self._relay, name="relay", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The API server's process."""
        return self.process.pid

    def returncode(self) -> int | None:
        """Popen's return code, None while it runs."""
        return self.process.poll()

    def lines(self) -> list[Line]:
        """Return what was printed since the last call."""
        found = []
        while self._lines:
            found.append(self._lines.popleft())
        return found

    def _relay(self) -> None:
        assert self.process.stdout is not None
        source = self.process.stdout.fileno()
        rest = b""
        while True:
            try:
                data = os.read(source, 65536)
            except OSError:
                data = b""
            if not data:
                break
            self._copy(data)
            # A bar that redraws itself ends its states with carriage returns: each one is news.
            *whole, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            rest = rest[-_LONGEST:]
            self._read(whole)
        self._read([rest])

    def _copy(self, data: bytes) -> None:
        view = memoryview(data)
        with suppress(OSError):  # the reader is gone: the engine must not die of it
            while view:
                view = view[os.write(self._out, view) :]

    def _read(self, raw: list[bytes]) -> None:
        for one in raw:
            line = read(one.decode("utf-8", errors="replace"))
            if line.text:
                self.errors.see(line)
                self._lines.append(line)

    def ask_to_stop(self) -> None:
        """SIGTERM to the API server, which tells its own children."""
        with suppress(ProcessLookupError):
            self.process.terminate()

    def kill(self, seconds: float = 10.0) -> list[int]:
        """SIGKILL the whole tree, adopted orphans too, and read the last lines.

        Returns the PIDs that outlived `seconds`.
        """
        left = processes.kill_descendants(seconds, spare=self.pid)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        self._reader.join(timeout=2)
        return left


def bytes_read(tree: Sequence[psutil.Process]) -> tuple[int, int]:
    """Return bytes that `tree` has read through calls, and from storage: a mapped file shows only in the second."""
    calls = storage = 0
    for one in tree:
        with suppress(OSError, ValueError, KeyError):
            pairs = (line.split(": ") for line in Path(f"/proc/{one.pid}/io").read_text(encoding="ascii").splitlines())
            fields = {key: int(value) for key, value in pairs}
            calls += fields["rchar"]
            storage += fields["read_bytes"]
    return calls, storage
