"""The one log stream out of the programs' pipes, and what the display shows, in threads of their own."""

from __future__ import annotations

import os
import queue
import selectors
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from appliance import rundir
from appliance.rundir.phase import Phase
from entrypoint.relay import Formatter, Lines, Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import TextIO

    from rich.console import Console

OWN = "appliance"
"""The entrypoint's own name in the log."""

_EVERY = 0.25  # seconds between two looks at phase.json, and for which a full queue is waited for
_HELD = 1000  # lines between the two threads


class Display(Protocol):
    """Turns phase.json into lines, and may draw beside them."""

    def update(self, phase: Phase | None, now: float) -> list[str]:
        """Return the lines that are to be written now."""

    def close(self) -> None:
        """Take away what is drawn."""


class Stream:
    """The log of all programs. `console` is given in a terminal, where a bar may stand below the lines.

    One thread reads the pipes, another writes. A log whose reader stands still makes the programs wait, as a pipe does,
    until the end is asked for: then lines that nobody takes are dropped, so that every program can end in order.
    """

    def __init__(self, formatter: Formatter, redactor: Redactor, out: TextIO, console: Console | None = None) -> None:
        self._formatter = formatter
        self._redactor = redactor
        self._out = out
        self._console = console
        self._queue: queue.Queue[tuple[str, str, str | None] | None] = queue.Queue(_HELD)
        self._selector = selectors.DefaultSelector()
        self._lines: dict[str, Lines] = {}
        self._writers: list[int] = []
        self._display: tuple[Display, Path] | None = None
        self._hurry = threading.Event()
        self._stuck = False
        self._ending = threading.Event()
        self._reader = threading.Thread(target=self._read, name="log-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="log-writer", daemon=True)

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
        self._reader.start()
        self._writer.start()

    def show(self, display: Display, run_dir: Path) -> None:
        """Let `display` follow the phases in `run_dir` from now on."""
        self._display = (display, run_dir)

    def say(self, text: str, level: str = "info") -> None:
        """Write a line of the entrypoint's own. Never waits: it is dropped when the log's reader stands still."""
        with suppress(queue.Full):
            self._queue.put_nowait((OWN, self._redactor.text(text), level))

    def hurry(self) -> None:
        """Drop from now on what the log's reader does not take."""
        self._hurry.set()

    def end(self, seconds: float = 3.0) -> None:
        """Write what is left and stop; give up after `seconds` when the log's reader stands still."""
        self.hurry()
        self.close_pipes()
        self._ending.set()
        self._reader.join(seconds)
        self._writer.join(seconds)

    def _read(self) -> None:
        while True:
            # Looked at before the pipes: what was written before the end was asked for is still read.
            ending = self._ending.is_set()
            if not self._selector.get_map():
                self._ending.wait(_EVERY)
            ready = self._selector.select(0.0 if ending else _EVERY) if self._selector.get_map() else []
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
                for line in self._lines[key.data].feed(data):
                    self._put((key.data, line, None))
            if ending and not ready:
                break
        for program, lines in self._lines.items():
            for line in lines.end():
                self._put((program, line, None))
        self._put(None)

    def _put(self, item: tuple[str, str, str | None] | None) -> None:
        while True:
            try:
                # Once nobody took a line for a while, no later line is waited for.
                self._queue.put(item, block=not self._stuck, timeout=_EVERY)
                self._stuck = False
            except queue.Full:
                if not self._hurry.is_set():
                    continue
                self._stuck = True
            return

    def _write(self) -> None:
        looked = 0.0
        while True:
            try:
                item = self._queue.get(timeout=_EVERY)
            except queue.Empty:
                pass
            else:
                if item is None:
                    break
                self._line(*item)
            if self._display is not None and time.monotonic() - looked >= _EVERY:
                looked = time.monotonic()
                self._look(*self._display)
        if self._display is not None:
            self._display[0].close()

    def _look(self, display: Display, run_dir: Path) -> None:
        for line in display.update(Phase.read(run_dir), rundir.clock()):
            self._line(OWN, self._redactor.text(line), "info")

    def _line(self, program: str, text: str, level: str | None) -> None:
        line = self._formatter(program, text, level)
        # A log whose reader went away is no reason to stop serving.
        with suppress(OSError, ValueError):
            if self._console is not None:
                self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                self._out.write(line + "\n")
                self._out.flush()
