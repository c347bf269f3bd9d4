"""Work on the compile cache, one job at a time and in a thread of its own: gigabytes are read or removed."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from appliance.errors import ApplianceError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

Action = Literal["prune", "verify", "seal", "remove"]


STEP_BACK = 10
"""The niceness of a job: a tenth of what an answer gets, and enough to come to an end beside a busy engine."""


def step_back() -> None:
    """Let this thread run only where the answering one does not want to. Linux has a priority for each thread."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), STEP_BACK)


class Busy(Exception):  # noqa: N818 - answered with 409, not an error of the sidecar
    """A job is under way; the text says which."""


@dataclass
class Job:
    """One job. `done` of `total` bytes are read or removed; `result` and `problem` are known at the end."""

    number: int
    action: Action
    key: str | None = None
    total: int = 0
    done: int = 0
    state: Literal["running", "done", "failed"] = "running"
    result: Any = None
    problem: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    begun: float = field(default_factory=time.monotonic)
    ended: float | None = None
    over: threading.Event = field(default_factory=threading.Event, repr=False)

    def advance(self, count: int) -> None:
        """Count bytes that are through."""
        self.done += count

    @property
    def seconds(self) -> float:
        """How long it has taken so far, or took."""
        return (time.monotonic() if self.ended is None else self.ended) - self.begun


class Jobs:
    """Starts one job at a time; `last` is the one under way, or the one before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.last: Job | None = None

    def start(self, action: Action, key: str | None, work: Callable[[Job], Any]) -> Job:
        """Start `work`, which returns the result. Raises Busy while another job is under way."""
        with self._lock:
            if self.last is not None and not self.last.over.is_set():
                raise Busy(
                    f"{self.last.action} has been under way for {self.last.seconds:.0f} s, and there is one job at a "
                    "time; GET /v1/cache tells its progress"
                )
            job = self.last = Job(next(self._numbers), action, key)
        logger.info("cache: %s %s", action, key or "all")
        threading.Thread(target=self._run, args=(job, work), name=f"cache-{action}", daemon=True).start()
        return job

    def _run(self, job: Job, work: Callable[[Job], Any]) -> None:
        step_back()
        try:
            job.result = work(job)
            job.state = "done"
        except ApplianceError as error:
            job.state, job.problem = "failed", str(error)
        except OSError as error:
            job.state, job.problem = "failed", f"the disk refuses: {error.strerror or type(error).__name__}"
        except Exception as error:
            logger.exception("cache: %s failed", job.action)
            job.state, job.problem = "failed", f"internal error: {type(error).__name__}; the sidecar's log tells more"
        finally:
            job.ended = time.monotonic()
            logger.info("cache: %s is %s after %.1f s", job.action, job.state, job.seconds)
            job.over.set()
