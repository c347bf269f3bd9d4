"""Starts the engine, watches it, restarts or ends it, and writes what it knows into phase.json every second.

The program `engine` of supervisord. It alone owns the engine's restarts: when it ends, the whole ends.

A start that takes longer than its budget, or stands still for longer than the profile allows, is ended with the stacks
of its processes in the log, and so is the whole: a second try would stand still again. An engine that dies is started
again (`on_engine_exit: restart`), at most `max_restarts` times without becoming ready, and never after exit status 2,
which is that of a wrong option. One start more is owed to an engine that tripped over what an earlier one compiled:
that is thrown away first. An engine that serves and stalls has its stacks dumped once the grace is over; after as
long again it is killed, and restarted or not like one that died.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from appliance import paths, rundir
from appliance.errors import ApplianceError
from appliance.rundir.exit_record import ExitRecord
from entrypoint import orders, processes
from entrypoint.compile_cache import SEAL_SECONDS, CompileCache
from entrypoint.engine_process import Engine
from entrypoint.gpu_watch import GpuWatch
from entrypoint.life import LOOK_EVERY, Ending, Life, Stopping
from entrypoint.phase_file import PhaseFile
from entrypoint.relay import Redactor, secrets_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

TICK = 0.2
BACKOFF_LIMIT = 30.0
_CHECKING = "checking what earlier starts compiled"


class Guardian:
    """The engine's keeper. Times are on rundir.clock()."""

    def __init__(self, run_dir: Path, what: orders.Orders) -> None:
        self.run_dir = run_dir
        self.orders = what
        self.asked = False
        """Whether SIGTERM came."""
        self._parent = os.getppid()
        self._redactor = Redactor(secrets_of(os.environ))
        self.phase = PhaseFile(run_dir, what.start, what.stall_grace, self._redactor, self.say)
        self._gpus = GpuWatch(what.gpus)
        self._restarts = 0
        self._failures = 0
        """Starts in a row that did not become ready."""
        self.cache = CompileCache(run_dir, what.plan, what.environment, self.say)

    def run(self) -> int:
        """Keep the engine until it ends for good. Returns the exit status of the whole."""
        try:
            self._open_cache()
            ending = self._keep()
        except Stopping:
            ending = Ending("stopped as asked", 0)
        self._gpus.stop()
        self.phase.enter("dead", ending.reason)
        self._leave_word(ending)
        # Last: it may take seconds, and supervisord waits for no more than it was told.
        self.cache.close(clean=ending.status == 0)
        return ending.status

    def _leave_word(self, ending: Ending) -> None:
        # Where the ender has written already, the guardian ends only because the whole does.
        if ExitRecord.read(self.run_dir) is None:
            reason = self._redactor.text(ending.reason)
            with suppress(OSError):
                ExitRecord(ending.status, reason, "engine", rundir.clock()).write(self.run_dir)

    def _keep(self) -> Ending:
        while True:
            ending = self._one_start()
            if self._owes_a_start(ending):
                self.say(f"{ending.reason}; starting once more without what was compiled earlier")
                self._failures -= 1
                continue
            if not (ending.again and self.orders.restart):
                return ending
            if self._failures > self.orders.max_restarts:
                return Ending(f"{ending.reason}; gave up after {self._failures} starts without becoming ready")
            self._back_off(ending.reason)

    def _open_cache(self) -> None:
        """Read and judge what earlier starts compiled: on a slow disk that takes longer than a probe waits."""
        read = 0

        def seen(count: int) -> None:
            nonlocal read
            read += count

        thread = threading.Thread(target=self.cache.open, args=(seen,), name="cache", daemon=True)
        self.phase.begin(os.getpid(), progress=_CHECKING)
        thread.start()
        looked = rundir.clock()
        try:
            while thread.is_alive():
                self.check_asked()
                thread.join(TICK)
                if rundir.clock() - looked >= LOOK_EVERY:
                    looked = rundir.clock()
                    self.phase.progress(f"{_CHECKING}, {read / 1e6:.0f} MB read")
                    self.phase.write()
        finally:
            thread.join(SEAL_SECONDS)

    def _owes_a_start(self, ending: Ending) -> bool:
        """Whether the engine ended by what was compiled for it, which is gone now. Every other end counts as usual."""
        if ending.spoilt:
            return self.cache.drop(ending.spoilt)
        return ending.again and self._failures > 0 and self.cache.died(ending.reason)

    def _back_off(self, reason: str) -> None:
        wait = min(2.0 ** max(self._failures - 1, 0), BACKOFF_LIMIT)
        self._restarts += 1
        self.phase.enter("dead", f"{reason}; starting again in {wait:.0f} s (restart {self._restarts})")
        until = rundir.clock() + wait
        while rundir.clock() < until:
            self.check_asked()
            self.phase.write()
            self.pause()

    def _one_start(self) -> Ending:
        self._failures += 1
        for name in (rundir.HEARTBEAT, rundir.ACCELERATION):
            (self.run_dir / name).unlink(missing_ok=True)
        for stale in (self.run_dir / rundir.PLUGINS).glob("*.json"):
            stale.unlink(missing_ok=True)
        try:
            environment = {**self.orders.environment, **self.cache.variables}
            engine = Engine(self.orders.command, environment, sys.stdout.fileno())
        except OSError as error:
            return Ending(f"the engine cannot be started: {error.strerror}")
        self.cache.began()
        self.phase.begin(engine.pid, self._restarts)
        try:
            return Life(self, engine).watch()
        finally:
            if left := engine.kill():
                self.say(f"processes {left} outlive SIGKILL: they hang in a driver's call; this host needs a restart")

    def became_ready(self, tokens: list[int] | None) -> None:
        """The engine serves: failures of earlier starts are forgiven. Later starts must give the same `tokens`."""
        self._failures = 0
        self.cache.became_ready(tokens)

    def lost_gpu(self) -> Ending | None:
        """Return the end when a GPU vanished: no restart inside this container brings it back."""
        if not self._gpus.lost:
            return None
        return Ending(f"{self._gpus.lost}; restart the container, or look at the host's `dmesg` for Xid messages")

    def pause(self) -> None:
        """Wait for the next tick. Ends at once, with the engine, when supervisord is gone."""
        time.sleep(TICK)
        self.cache.poll()
        if os.getppid() != self._parent:
            processes.kill_descendants()
            self.cache.leave()
            os._exit(1)

    def check_asked(self) -> None:
        """Raise Stopping when SIGTERM came."""
        if self.asked:
            raise Stopping

    def say(self, text: str) -> None:
        """One line of the guardian's own. Dropped rather than waited for when the log's reader stands still."""
        with suppress(OSError):
            os.write(2, self._redactor.text(text).encode() + b"\n")


def main() -> int:
    """Guard the engine of the plan in the run directory."""
    os.set_blocking(2, False)
    processes.adopt_orphans()
    run_dir = paths.run_dir()
    try:
        guardian = Guardian(run_dir, orders.read(run_dir, os.environ))
    except ApplianceError as error:
        print(f"guardian: {error}", file=sys.stderr)
        return error.exit_status

    def asked(_sign: int, _frame: FrameType | None) -> None:
        guardian.asked = True

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return guardian.run()


if __name__ == "__main__":
    sys.exit(main())
