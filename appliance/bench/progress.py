"""How far a benchmark is: a bar with the time left in a terminal, a line now and then in a log, or nothing."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from appliance.models.progress import LINE_EVERY, time_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class Bar(Protocol):
    """One piece of work."""

    def reach(self, done: float) -> None:
        """Set how much is done; a smaller number than before is ignored."""


class Progress(Protocol):
    """Where work is shown."""

    def bar(self, title: str, total: float) -> AbstractContextManager[Bar]:
        """Show a piece of work of `total` while the context lasts."""


def for_stream(stream: TextIO | None = None, *, silent: bool = False) -> Progress:
    """Return what suits `stream`, standard error when None."""
    stream = sys.stderr if stream is None else stream
    if silent:
        return Silent()
    return Terminal(stream) if stream.isatty() else Lines(lambda line: print(line, file=stream, flush=True))


class Silent:
    """Shows nothing."""

    @contextmanager
    def bar(self, title: str, total: float) -> Iterator[Bar]:  # noqa: ARG002 - the protocol's
        yield self

    def reach(self, done: float) -> None:
        """Nothing to show."""


class Lines:
    """A line when work starts, at most one every LINE_EVERY seconds, one when it ends."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock

    @contextmanager
    def bar(self, title: str, total: float) -> Iterator[Bar]:
        started = self._clock()
        self._write(f"{title}: started")
        yield _Written(title, total, self._write, self._clock)
        self._write(f"{title}: ended after {self._clock() - started:.0f} s")


class _Written:
    def __init__(self, title: str, total: float, write: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._title, self._total = title, total
        self._write, self._clock = write, clock
        self._started = self._written = clock()
        self._done = 0.0

    def reach(self, done: float) -> None:
        self._done = max(self._done, done)
        now = self._clock()
        if now - self._written < LINE_EVERY or not self._done:
            return
        self._written = now
        left = (now - self._started) * max(0.0, self._total / self._done - 1)
        self._write(f"{self._title}: {100 * min(1.0, self._done / self._total):.0f} %, {time_left(left)}")


class Terminal:
    """A rich bar."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)

    @contextmanager
    def bar(self, title: str, total: float) -> Iterator[Bar]:
        from rich import progress as bars

        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
        )
        with bars.Progress(*columns, console=self._console) as shown:
            yield _Drawn(shown, shown.add_task(title, total=total))


class _Drawn:
    def __init__(self, shown: object, task: object) -> None:
        from rich import progress as bars

        assert isinstance(shown, bars.Progress)
        self._shown, self._task = shown, task
        self._done = 0.0

    def reach(self, done: float) -> None:
        self._done = max(self._done, done)
        self._shown.update(self._task, completed=self._done)  # type: ignore[arg-type] # a TaskID
