"""What a person sees of a start: each phase with its time and budget, then how to use what was started."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.health import address
from appliance.rundir.phase import ON_THE_WAY

if TYPE_CHECKING:
    from rich.console import Console

    from appliance.rundir.phase import Phase

LINE_EVERY = 15.0
"""Seconds between two lines about a phase that goes on."""


@dataclass(frozen=True)
class Address:
    """Where the engine and the sidecar are, and how a person proves to be allowed."""

    host: str
    port: int
    sidecar: tuple[str, int] | None
    """Host and port of the sidecar, None where a container of its own has it, whose address is not known here."""
    model: str
    key: str | None
    """A shell expression that gives the API key, None when none is asked for. Never the key itself."""
    probe: str
    """The command that asks for readiness."""
    tls: bool = False

    @property
    def url(self) -> str:
        """The engine's base address as a client on this machine uses it."""
        return address.url(self.host, self.port, tls=self.tls)

    @property
    def status(self) -> str | None:
        """The sidecar's base address."""
        return address.url(*self.sidecar) if self.sidecar else None

    def curl(self) -> str:
        """A command that asks the model something, to be pasted into a shell."""
        # Its first token leads by a whole nat in bfloat16 and float32: no processor answers the small model otherwise.
        question = {"role": "user", "content": "Name the capital of France."}
        body = {"model": self.model, "messages": [question], "max_tokens": 256, "temperature": 0}
        words = ["curl", *(["--insecure"] if self.tls else []), f"{self.url}/v1/chat/completions"]
        headers = ["-H 'Content-Type: application/json'"]
        if self.key:
            headers.append(f'-H "Authorization: Bearer {self.key}"')
        return " ".join([*words, *headers, "-d", shlex.quote(json.dumps(body, ensure_ascii=False))])

    def welcome(self, seconds: float) -> list[str]:
        """What is said once the engine is ready."""
        everywhere = "" if address.reachable(self.host) == self.host else f" (listening on all addresses, {self.host})"
        health = f"{self.status}/health/ready, or " if self.status else ""
        return [
            f"ready after {seconds:.0f} s: {self.model} at {self.url}/v1{everywhere}",
            f"try it: {self.curl()}",
            f"status: {health}`{self.probe}`",
        ]


def about(phase: Phase, now: float) -> str:
    """Say in one line where the engine is."""
    if phase.phase in ON_THE_WAY:
        text = f"{phase.phase} {_time(phase, now)}"
        return f"{text}: {phase.progress}" if phase.progress else text
    return f"{phase.phase}: {phase.reason}" if phase.reason else str(phase.phase)


def _time(phase: Phase, now: float) -> str:
    elapsed = f"{_elapsed(phase, now):.0f} s"
    return elapsed if phase.budget_s is None else f"{elapsed} of {phase.budget_s:.0f} s"


def _elapsed(phase: Phase, now: float) -> float:
    """Seconds from the beginning of the start until `now`; 0 where the record does not tell."""
    return 0.0 if phase.started is None else now - phase.started


@dataclass
class PhaseLines:
    """Turns the states of phase.json into lines for a log: one when a phase begins, one now and then while it lasts."""

    address: Address
    every: float = LINE_EVERY
    _seen: tuple[Any, ...] | None = None
    _shown: float = 0.0

    def update(self, phase: Phase | None, now: float) -> list[str]:
        """Return what is to be said at `now` (on rundir.clock())."""
        if phase is None:
            return []
        mark = (phase.phase, phase.since)
        on_the_way = phase.phase in ON_THE_WAY
        if mark == self._seen and not (on_the_way and now - self._shown >= self.every):
            return []
        new = mark != self._seen
        self._seen, self._shown = mark, now
        if phase.phase == "ready" and new:
            return self.address.welcome(_elapsed(phase, now if phase.since is None else phase.since))
        return [about(phase, now)]

    def close(self) -> None:
        """Nothing is drawn."""


@dataclass
class PhaseBar:
    """The same in a terminal: one bar at the bottom, which goes away when the engine is ready."""

    address: Address
    console: Console
    _lines: PhaseLines = field(init=False)
    _bar: Any = None
    _task: Any = None

    def __post_init__(self) -> None:
        # The bar shows the time, so a line is wanted only when a phase begins.
        self._lines = PhaseLines(self.address, every=float("inf"))

    def update(self, phase: Phase | None, now: float) -> list[str]:
        """Redraw the bar and return the lines that are to stay."""
        lines = self._lines.update(phase, now)
        if phase is None or phase.phase not in ON_THE_WAY:
            self.close()
            return lines
        if self._bar is None:
            self._open(phase.phase)
        self._bar.update(
            self._task,
            description=phase.phase,
            total=phase.budget_s,
            completed=_elapsed(phase, now),
            note=phase.progress or "",
            time=_time(phase, now),
            refresh=True,
        )
        return []

    def _open(self, description: str) -> None:
        from rich import progress

        self._bar = progress.Progress(
            progress.TextColumn("{task.description:<8}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[time]}"),
            progress.TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task(description, time="", note="")
        self._bar.start()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
