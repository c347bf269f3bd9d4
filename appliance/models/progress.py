"""How long work is shown: a bar in a terminal, a line now and then in a log, nothing for `--json`."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

Unit = Literal["bytes", "seconds"]

LINE_EVERY = 5.0
"""Seconds between two lines of one task in a log: often enough to see life, seldom enough to read."""


class Task(Protocol):
    """One piece of work. All methods may be called from any thread."""

    def advance(self, amount: float) -> None:
        """Count `amount` more of the task's unit as done; negative takes back."""

    def reach(self, done: float) -> None:
        """Set what is done, in the task's unit."""

    def note(self, text: str) -> None:
        """Say what the task is at now, in a few words."""


class Progress(Protocol):
    """Where tasks are shown."""

    def task(
        self, title: str, *, total: float | None = None, unit: Unit = "bytes", done: float = 0
    ) -> AbstractContextManager[Task]:
        """Show a task while the context lasts; `done` of `total` (both in `unit`) is there already."""

    def say(self, line: str) -> None:
        """Show one line that stays."""


def for_stream(stream: TextIO | None = None, *, silent: bool = False) -> Progress:
    """Return the progress that suits `stream` (standard error when None): a bar in a terminal, lines elsewhere."""
    stream = sys.stderr if stream is None else stream
    if silent:
        return SilentProgress()
    if stream.isatty():
        return TerminalProgress(stream)
    return LogProgress(lambda line: print(line, file=stream, flush=True))


def in_units(amount: float, unit: Unit) -> str:
    """Write an amount for people: bytes in decimal units as disks and hubs count them, seconds as they are."""
    if unit == "seconds":
        return f"{amount:.0f} s"
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= size:
            return f"{amount / size:.1f} {name}"
    return f"{amount:.0f} B"


def time_left(seconds: float) -> str:
    """Write a remaining time, coarser the longer it is."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h left"
    return f"{seconds / 60:.0f} min left" if seconds >= 120 else f"{seconds:.0f} s left"


class LogProgress:
    """Plain lines: one when a task starts, at most one every LINE_EVERY seconds, one when it ends."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock

    @contextmanager
    def task(self, title: str, *, total: float | None = None, unit: Unit = "bytes", done: float = 0) -> Iterator[Task]:
        task = _LoggedTask(title, total, unit, done, self._write, self._clock)
        yield task
        task.finish()

    def say(self, line: str) -> None:
        self._write(line)


class _LoggedTask:
    def __init__(
        self,
        title: str,
        total: float | None,
        unit: Unit,
        done: float,
        write: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._begin = self._done = done
        self._note = ""
        self._write, self._clock = write, clock
        self._started = self._written = clock()
        self._lock = threading.Lock()
        write(f"{title}: {self._amount() if done or total else 'started'}")

    def advance(self, amount: float) -> None:
        with self._lock:
            self._done += amount
            self._show()

    def reach(self, done: float) -> None:
        with self._lock:
            self._done = done
            self._show()

    def note(self, text: str) -> None:
        with self._lock:
            self._note = text
            self._show()

    def finish(self) -> None:
        self._write(f"{self._title}: done in {self._clock() - self._started:.0f} s")

    def _show(self) -> None:
        now = self._clock()
        if now - self._written < LINE_EVERY:
            return
        self._written = now
        words = [self._amount()]
        rate = (self._done - self._begin) / (now - self._started)
        if self._unit == "bytes" and rate > 0:
            words.append(f"{in_units(rate, 'bytes')}/s")
            if self._total is not None and self._total > self._done:
                words.append(time_left((self._total - self._done) / rate))
        if self._note:
            words.append(self._note)
        self._write(f"{self._title}: {', '.join(words)}")

    def _amount(self) -> str:
        if not self._total:
            return in_units(self._done, self._unit)
        share = f" ({100 * self._done / self._total:.0f} %)" if self._unit == "bytes" else ""
        return f"{in_units(self._done, self._unit)} of {in_units(self._total, self._unit)}{share}"


class TerminalProgress:
    """A rich bar on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)

    @contextmanager
    def task(self, title: str, *, total: float | None = None, unit: Unit = "bytes", done: float = 0) -> Iterator[Task]:
        from rich import progress as bars

        amount: tuple[bars.ProgressColumn, ...] = (bars.TimeElapsedColumn(), bars.TextColumn("{task.fields[budget]}"))
        if unit == "bytes":
            amount = (bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
        columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), *amount)
        with bars.Progress(*columns, bars.TextColumn("{task.fields[note]}"), console=self._console) as shown:
            budget = f"of {total:.0f} s" if unit == "seconds" and total else ""
            identity = shown.add_task(title, total=total, completed=int(done), note="", budget=budget)
            yield _BarTask(shown, identity)

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)


class _BarTask:
    def __init__(self, shown: _Bars, identity: _BarId) -> None:
        self._shown = shown
        self._identity = identity

    def advance(self, amount: float) -> None:
        self._shown.update(self._identity, advance=amount)

    def reach(self, done: float) -> None:
        self._shown.update(self._identity, completed=done)

    def note(self, text: str) -> None:
        self._shown.update(self._identity, note=text)


class SilentProgress:
    """Shows nothing: `--json` owns the output."""

    @contextmanager
    def task(
        self,
        title: str,  # noqa: ARG002
        *,
        total: float | None = None,  # noqa: ARG002
        unit: Unit = "bytes",  # noqa: ARG002
        done: float = 0,  # noqa: ARG002
    ) -> Iterator[Task]:
        yield self

    def advance(self, amount: float) -> None: ...

    def reach(self, done: float) -> None: ...

    def note(self, text: str) -> None: ...

    def say(self, line: str) -> None: ...


if TYPE_CHECKING:
    from rich.progress import Progress as _Bars
    from rich.progress import TaskID as _BarId
