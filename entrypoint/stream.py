"""Writes the one log stream, and what the display shows, in one thread: a reader who stands still blocks only this."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from appliance.health import rundir
from entrypoint.relay import Formatter, Lines, Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any, TextIO

    from rich.console import Console

OWN = "appliance"
"""The entrypoint's own name in the log."""

_EVERY = 0.25  # seconds between two looks at phase.json


class Display(Protocol):
    """Turns phase.json into lines, and may draw beside them."""

    def update(self, record: dict[str, Any] | None, now: float) -> list[str]:
        """Return the lines that are to be written now."""

    def close(self) -> None:
        """Take away what is drawn."""


class Stream:
    """The log of all programs. `console` is given in a terminal, where a bar may stand below the lines."""

    def __init__(self, formatter: Formatter, redactor: Redactor, out: TextIO, console: Console | None = None) -> None:
        self._formatter = formatter
        self._redactor = redactor
        self._out = out
        self._console = console
        self._own: deque[tuple[str, str]] = deque()
        self._selector = selectors.DefaultSelector()
        self._lines: dict[str, Lines] = {}
        self._writers: list[int] = []
        self._display: tuple[Display, Path] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)

    def pipes(self, programs: Iterable[str]) -> dict[str, int]:
        """Return a descriptor per program to write its output to; `close_pipes` once they are inherited."""
        given = {}
        for program in programs:
            reader, writer = os.pipe()
            self._lines[program] = Lines(self._redactor)
            self._selector.register(reader, selectors.EVENT_READ, program)
            self._writers.append(writer)
            given[program] = writer
        return given

    def close_pipes(self) -> None:
        """Close this process's writing ends, so that a stream ends with its last writer."""
        for writer in self._writers:
            os.close(writer)
        self._writers.clear()

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def show(self, display: Display, run_dir: Path) -> None:
        """Let `display` follow the phases in `run_dir` from now on."""
        self._display = (display, run_dir)

    def say(self, text: str, level: str = "info") -> None:
        """Write a line of the entrypoint's own. Never waits."""
        self._own.append((self._redactor.text(text), level))

    def end(self, seconds: float = 3.0) -> None:
        """Write what is left and stop; give up after `seconds` when the log's reader stands still."""
        self.close_pipes()
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        else:
            self._flush_own()

    def _run(self) -> None:
        looked = 0.0
        while True:
            ending = self._ending.is_set()
            busy = self._read(0.0 if ending else _EVERY)
            self._flush_own()
            if self._display is not None and time.monotonic() - looked >= _EVERY:
                looked = time.monotonic()
                display, run_dir = self._display
                for line in display.update(rundir.read(run_dir, rundir.PHASE), rundir.clock()):
                    self._write(OWN, self._redactor.text(line), "info")
            if ending and not busy:
                break
        for program, lines in self._lines.items():
            for line in lines.end():
                self._write(program, line)
        if self._display is not None:
            self._display[0].close()
        self._flush_own()

    def _read(self, seconds: float) -> bool:
        """Write what the programs wrote. Returns whether there was anything."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return False
        ready = self._selector.select(seconds)
        for key, _ in ready:
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            for line in self._lines[key.data].feed(data):
                self._write(key.data, line)
        return bool(ready)

    def _flush_own(self) -> None:
        while self._own:
            text, level = self._own.popleft()
            self._write(OWN, text, level)

    def _write(self, program: str, text: str, level: str | None = None) -> None:
        line = self._formatter(program, text, level)
        # A log whose reader went away is no reason to stop serving.
        with suppress(OSError, ValueError):
            if self._console is not None:
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                self._out.write(line + "\n")
                self._out.flush()
