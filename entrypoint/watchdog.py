"""When a start has gone on for too long, or stands still. Pure: the caller brings the clock."""

from __future__ import annotations

from dataclasses import dataclass, field

# Idle event loops and queues read a few bytes a second without end; a loader reads megabytes. Storage reads come from
# files alone, so there a little tells more.
CALLS_PER_SECOND = 1 << 20
STORAGE_PER_SECOND = 64 << 10


@dataclass
class Watchdog:
    """Watches one start. Times in seconds on any steady clock."""

    began: float
    budget: float
    """Of the whole start."""
    patience: float
    """Of a start without progress."""
    last: float = field(init=False)
    """When there was progress last."""
    what: str = "the engine's process was started"
    """The last progress."""
    _seen: set[str] = field(default_factory=set)
    _read: tuple[float, int, int] | None = None

    def __post_init__(self) -> None:
        self.last = self.began

    def line(self, now: float, key: str, text: str) -> None:
        """A line was printed. One whose key came before is a repetition, not progress."""
        if key not in self._seen:
            self._seen.add(key)
            self.milestone(now, text)

    def milestone(self, now: float, text: str) -> None:
        """Something was reached."""
        self.last, self.what = now, text

    def read(self, now: float, calls: int, storage: int) -> None:
        """The process tree has read so many bytes in all, through calls and from storage.

        A process that ends takes its count along; a negative difference is no progress.
        """
        if self._read is not None:
            before, calls_before, storage_before = self._read
            seconds = max(now - before, 0.1)
            if (
                calls - calls_before >= CALLS_PER_SECOND * seconds
                or storage - storage_before >= STORAGE_PER_SECOND * seconds
            ):
                self.last = now
        self._read = (now, calls, storage)

    def verdict(self, now: float, phase: str) -> str | None:
        """Return what is wrong with the start in `phase`, or None."""
        if now - self.began > self.budget:
            return (
                f"the start took longer than its budget of {self.budget:.0f} s: it is in phase {phase} after "
                f'{now - self.began:.0f} s; the last progress was "{self.what}" {now - self.last:.0f} s ago'
            )
        if now - self.last > self.patience:
            return (
                f"phase {phase} stands still: no progress for {now - self.last:.0f} s (the profile allows "
                f'{self.patience:.0f} s); the last was "{self.what}"'
            )
        return None
