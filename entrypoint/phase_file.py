"""phase.json, as the guardian writes it every second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance import rundir
from appliance.rundir import plugin_proof

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from entrypoint.relay import Redactor


class PhaseFile:
    """The phase that the engine is in and what is known of it. `say` takes one line for the log."""

    def __init__(
        self, run_dir: Path, budget: float | None, stall_grace: float, redactor: Redactor, say: Callable[[str], None]
    ) -> None:
        self.record: dict[str, Any] = {}
        self._run_dir = run_dir
        self._standing = {"budget_s": budget, "stall_grace_s": stall_grace}
        self._redactor = redactor
        self._say = say
        self._writable = True

    @property
    def name(self) -> str:
        """The phase."""
        return str(self.record["phase"])

    def begin(self, pid: int, restarts: int = 0, progress: str | None = None) -> None:
        """Begin a start of the engine as process `pid`."""
        self.record = {
            **self._standing,
            "started": rundir.clock(),
            "pid": pid,
            "stopped": [],
            "models": [],
            "plugins": dict.fromkeys(plugin_proof.ROLES, False),
            "progress": progress,
            "restarts": restarts,
        }
        self.enter("starting")

    def enter(self, phase: str, reason: str | None = None) -> None:
        """Begin a phase and write it."""
        self.record |= {"phase": phase, "since": rundir.clock(), "reason": reason and self._redactor.text(reason)}
        self.write()

    def progress(self, text: str) -> None:
        """Note what the start is at."""
        self.record["progress"] = self._redactor.text(text)

    def write(self) -> None:
        """Refresh the file. One that cannot be written is old, and so fails the probes, which is true."""
        try:
            rundir.write(self._run_dir, rundir.PHASE, {**self.record, "at": rundir.clock()})
        except OSError as error:
            if self._writable:
                self._say(f"{self._run_dir / rundir.PHASE} cannot be written, so the probes fail: {error.strerror}")
            self._writable = False
        else:
            self._writable = True
