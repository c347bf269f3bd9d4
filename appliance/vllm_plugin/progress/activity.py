"""What the API process knows of the engine's work: requests in flight, engine steps, and the heartbeat made of both.

Written and read on the API server's event loop only, so nothing here is locked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.rundir.heartbeat import Heartbeat


@dataclass(slots=True)
class Activity:
    """Counters since this process started; times are on rundir.clock()."""

    in_flight: int = 0
    """Inference requests and websockets that the server has not finished answering."""
    sockets: int = 0
    """The websockets among them."""
    awaiting: dict[object, float] = field(default_factory=dict)
    """Requests wholly received and without a first response body byte, oldest first, with the time of receipt."""
    step_count: int = 0
    step_at: float | None = None
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps_record: str = "off: the stat logger is not loaded"
    holding_since: float | None = None
    """Since when the engine has held requests that somebody waits for, as seen by the beats."""

    def beat(self, now: float, pid: int) -> Heartbeat:
        """Return the heartbeat at `now`. `busy_since` is None exactly when there is nothing to do."""
        holding = self.in_flight > self.sockets and self.running + self.waiting > 0
        self.holding_since = (self.holding_since or now) if holding else None
        oldest = next(iter(self.awaiting.values()), None)
        return Heartbeat(
            at=now,
            pid=pid,
            step_count=self.step_count,
            step_at=self.step_at,
            running=self.running,
            waiting=self.waiting,
            in_flight=self.in_flight,
            sockets=self.sockets,
            awaiting=len(self.awaiting),
            oldest_awaiting_at=oldest,
            busy_since=min((mark for mark in (oldest, self.holding_since) if mark is not None), default=None),
            kv_usage=round(self.kv_usage, 4),
            finished=self.finished,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            steps_record=self.steps_record,
        )


ACTIVITY = Activity()
"""This process's: vLLM constructs the stat logger and the middleware itself, and they meet here."""
