"""supervisord as a child, from its configuration to the exit status of the whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance import rundir
from appliance.errors import CheckError
from appliance.rundir.exit_record import ExitRecord
from appliance.rundir.phase import Phase
from entrypoint import processes, supervision
from entrypoint.life import STOP_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.launch.plan import Plan
    from entrypoint.stream import Stream

KILL_SECONDS = 10
"""What the kernel gets to end killed processes; one in a driver's call may take longer."""
SLACK_SECONDS = 10
"""For supervisord, the sidecar and the guardian to end after the engine."""
TICK = 0.2
KILLED = 130  # 128 + SIGINT, as shells give it


class Session:
    """One run of supervisord with its programs."""

    def __init__(self, plan: Plan, environment: Mapping[str, str], stream: Stream) -> None:
        self._run_dir = Path(plan.setting("run_dir"))
        self._plan = plan
        self._environment = {
            **environment,
            "APPLIANCE_RUN_DIR": str(self._run_dir),
            # The plan's, where the command line overrules a variable: the sidecar must not look into another cache.
            "APPLIANCE_CACHE_DIR": str(plan.setting("cache_dir")),
            "PYTHONSAFEPATH": "1",
        }
        self._stream = stream
        self._stop_seconds = int(plan.health["drain"] + STOP_SECONDS + KILL_SECONDS + 5)
        self._asked = 0
        """How often the end was asked for."""
        self._deadline = float("inf")
        self._supervisord: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Start everything and stay until it has ended. Returns the exit status of the whole.

        Raises CheckError when the run directory cannot be written.
        """
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sign, self._ask)
        self._start()
        code = self._wait()
        if left := processes.kill_descendants(KILL_SECONDS):
            self._stream.say(f"processes {left} outlive SIGKILL: they hang in a driver's call", "error")
        status, reason = self._outcome(code)
        self._leave_word(reason)
        self._stream.say(f"ended with status {status}: {reason}", "info" if status == 0 else "error")
        return status

    def _start(self) -> None:
        pipes = self._stream.pipes(supervision.PROGRAMS)
        text = supervision.configuration(
            supervision.Wiring(
                run_dir=self._run_dir,
                sidecar=self._sidecar(),
                stop_seconds=self._stop_seconds,
                pipes=pipes,
                root=os.getuid() == 0,
            )
        )
        configuration = self._run_dir / "supervisord.conf"
        try:
            rundir.write(self._run_dir, rundir.PLAN, self._plan.to_json())
            configuration.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CheckError(f"{self._run_dir} cannot be written ({error.strerror}); free space there") from error
        command = [sys.executable, "-P", "-m", "supervisor.supervisord", "-c", str(configuration)]
        self._supervisord = subprocess.Popen(
            processes.tethered(command),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=pipes["supervisor"],
            stderr=pipes["supervisor"],
            pass_fds=list(pipes.values()),
            # A terminal's Ctrl-C is for this process alone, which passes it on once.
            start_new_session=True,
        )
        self._stream.close_pipes()
        if self._asked:
            self._pass_on()

    def _sidecar(self) -> tuple[str, int] | None:
        if not self._plan.setting("sidecar"):
            return None
        return self._plan.setting("sidecar_host"), self._plan.setting("sidecar_port")

    def _ask(self, sign: int, _frame: object) -> None:
        self._asked += 1
        if self._asked == 1:
            self._pass_on()
        elif sign == signal.SIGINT:
            self._deadline = 0.0

    def _pass_on(self) -> None:
        if self._supervisord is not None:
            self._limit()
            with suppress(ProcessLookupError):
                self._supervisord.terminate()

    def _limit(self) -> None:
        self._stream.hurry()
        self._deadline = min(self._deadline, time.monotonic() + self._stop_seconds + SLACK_SECONDS)

    def _wait(self) -> int | None:
        """Return supervisord's return code, None when it was not waited for any longer."""
        assert self._supervisord is not None
        while (code := self._supervisord.poll()) is None:
            if (self._run_dir / rundir.EXIT).exists():
                self._limit()
                # What a killed guardian leaves uses a generation of the compile cache that nobody holds any more.
                processes.kill_orphans(spare=self._supervisord.pid)
            if time.monotonic() > self._deadline:
                return None
            processes.reap(spare=self._supervisord.pid)
            time.sleep(TICK)
        return code

    def _outcome(self, code: int | None) -> tuple[int, str]:
        if code is None and self._deadline == 0.0:
            return KILLED, "killed as asked, without waiting for running requests"
        record = ExitRecord.read(self._run_dir)
        if record is not None:
            status, reason = 1 if record.status is None else record.status, str(record.reason)
            return (status, reason) if code is not None else (status or 1, f"{reason}; it took too long and was killed")
        if code is None:
            return 1, "did not end in time and was killed"
        if self._asked:
            return 0, "stopped as asked"
        return 1, f"supervisord ended with {processes.ending(code)}; nothing watches the engine any more"

    def _leave_word(self, reason: str) -> None:
        """Let the probes know when the guardian did not get to write the last phase itself."""
        last = Phase.read(self._run_dir) or Phase()
        if last.phase != "dead":
            now = rundir.clock()
            with suppress(OSError):
                replace(last, phase="dead", since=now, at=now, reason=reason).write(self._run_dir)
