"""phase.json, as the guardian writes it every second."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from appliance import rundir
from appliance.rundir import plugin_proof
from appliance.rundir.phase import Phase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from entrypoint.relay import Redactor


class PhaseFile:
    """The phase that the engine is in and what is known of it. `say` takes one line for the log."""

    def __init__(
        self, run_dir: Path, budget: float | None, stall_grace: float, redactor: Redactor, say: Callable[[str], None]
    ) -> None:
        self.record = Phase(budget_s=budget, stall_grace_s=stall_grace)
        """What is written, but for `at`."""
        self._run_dir = run_dir
        self._redactor = redactor
        self._say = say
        self._writable = True

    @property
    def name(self) -> str:
        """The phase."""
        return self.record.phase or ""

    def begin(self, pid: int, restarts: int = 0, progress: str | None = None) -> None:
        """Begin a start of the engine as process `pid`."""
        self.record = Phase(
            budget_s=self.record.budget_s,
            stall_grace_s=self.record.stall_grace_s,
            started=rundir.clock(),
            pid=pid,
            plugins=dict.fromkeys(plugin_proof.ROLES, False),
            progress=progress,
            restarts=restarts,
        )
        self.enter("starting")

    def enter(self, phase: str, reason: str | None = None) -> None:
        """Begin a phase and write it."""
        told = reason and self._redactor.text(reason)
        self.record = replace(self.record, phase=phase, since=rundir.clock(), reason=told)
        self.write()

    def progress(self, text: str) -> None:
        """Note what the start is at."""
        self.record = replace(self.record, progress=self._redactor.text(text))

    def write(self) -> None:
        """Refresh the file. One that cannot be written is old, and so fails the probes, which is true."""
        try:
            replace(self.record, at=rundir.clock()).write(self._run_dir)
        except OSError as error:
            if self._writable:
                self._say(f"{self._run_dir / rundir.PHASE} cannot be written, so the probes fail: {error.strerror}")
            self._writable = False
        else:
            self._writable = True
