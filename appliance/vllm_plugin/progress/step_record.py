"""The step record: steps.jsonl in the run directory, one JSON line for each executed engine step.

`append` is called between two steps of the engine and does no I/O; a thread of its own writes twice a second. A line
that could not be written is counted, and `{"t", "lost", "reason"}` says so once writing works again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from appliance import rundir
from appliance.rundir.step_line import StepLine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ROTATE_BYTES = 32 << 20
FLUSH_S = 0.5
PENDING_LINES = 100_000
"""Bound of what is held while a write hangs: many minutes of steps, some tens of megabytes."""

logger = logging.getLogger("vllm.appliance.steps")


class StepShape(NamedTuple):
    """What one engine step computes."""

    requests: int
    prefill_tokens: int
    decode_tokens: int


def shape(scheduled: Iterable[tuple[int, int, int, int]]) -> StepShape:
    """Sum up a step from (computed, new, prompt, known) tokens of each request in it.

    `computed` tokens precede the step's `new` ones; `known` counts the prompt and the sampled tokens. Prefill is what
    lies within the prompt, and, where a preempted request starts anew, within what it had already sampled; all else
    is decode, drafted tokens included.
    """
    requests = prefill = total = 0
    for computed, new, prompt, known in scheduled:
        requests += 1
        total += new
        prefill += max(0, min(computed + new, max(prompt, known - 1)) - computed)
    return StepShape(requests, prefill, total - prefill)


class StepRecord:
    """Appends to `folder`/steps.jsonl and keeps one older file of at most `rotate_bytes`."""

    def __init__(self, folder: Path, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._folder = folder
        self._rotate_bytes = rotate_bytes
        self._pending: deque[StepLine] = deque()
        # Two counts with one writer each: the engine's thread refuses, the writing thread fails and tells.
        self._refused = 0
        self._failed = 0
        self._told = 0
        self._failure: str | None = None
        self._file: int | None = None
        self._work = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="appliance-steps", daemon=True)
        self._thread.start()

    def append(self, line: StepLine) -> None:
        """Take one line; returns at once."""
        if len(self._pending) >= PENDING_LINES:
            self._refused += 1
            return
        self._pending.append(line)
        if not self._work.is_set():
            self._work.set()

    def close(self) -> None:
        """Write what is pending and stop. Waits two seconds at most for a disk that hangs."""
        self._closing.set()
        self._work.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        closing = False
        while not closing:
            self._work.wait()
            closing = self._closing.wait(FLUSH_S)
            self._work.clear()
            if batch := [self._pending.popleft() for _ in range(len(self._pending))]:
                self._write(batch)
        if self._file is not None:
            os.close(self._file)

    @property
    def lost(self) -> int:
        """Lines lost that no line of the file tells of yet."""
        return self._refused + self._failed - self._told

    def _write(self, batch: list[StepLine]) -> None:
        lost = self.lost
        lines = [StepLine(t=batch[0].t, lost=lost, reason=self._failure), *batch] if lost else batch
        data = "".join(json.dumps(line.to_json(), separators=(",", ":")) + "\n" for line in lines).encode()
        try:
            self._put(data)
        except OSError as error:
            self._failed += len(batch)
            if self._failure is None:
                logger.error("The step record cannot be written, serving goes on: %s", error)
            self._failure = str(error)
            return
        if lost:
            logger.info("The step record is written again; %d steps are missing", lost)
        self._told += lost
        self._failure = None

    def _put(self, data: bytes) -> None:
        """Append all of `data` or none of it: half a line would spoil the next one."""
        file = self._opened()
        size = os.fstat(file).st_size
        if size and size + len(data) > self._rotate_bytes:
            (self._folder / rundir.STEPS).replace(self._folder / rundir.PREVIOUS_STEPS)
            file, size = self._opened(), 0
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder / rundir.STEPS))
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, size)
            raise

    def _opened(self) -> int:
        """Return the descriptor of steps.jsonl, opened anew when the file was removed, renamed or replaced."""
        path = self._folder / rundir.STEPS
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._file), path.stat()):
                    return self._file
            os.close(self._file)
            self._file = None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        return self._file
