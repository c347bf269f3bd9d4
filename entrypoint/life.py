"""One start of the engine: how it becomes ready, how it is watched then, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from appliance import rundir
from appliance.acceleration.report import WARM_TOKENS_DIFFER
from appliance.health import judge
from appliance.rundir import plugin_proof
from appliance.rundir.heartbeat import Heartbeat
from appliance.rundir.phase import StoppedProcess
from entrypoint import evidence, processes
from entrypoint.engine_process import bytes_read
from entrypoint.first_tokens import FirstTokens, unanswered
from entrypoint.watchdog import Watchdog

if TYPE_CHECKING:
    import psutil

    from entrypoint.engine_process import Engine
    from entrypoint.guardian import Guardian
    from entrypoint.phase_file import PhaseFile

LOOK_EVERY = 1.0
STOP_SECONDS = 15.0
"""What vLLM gets to end by itself after the requests are done."""
SETTLE_SECONDS = 1.25
"""The engine looks at phase.json after each beat, once a second: only a beat later than this was made after it had seen
the phase, and counts every request that it still let in."""
LOST_SECONDS = 3.0
"""How long the API server gets to say why, after a process of the engine went."""


@dataclass(frozen=True)
class Ending:
    """How one start of the engine ended. `again`: whether another one may be tried.

    `spoilt` is the reason why what was compiled for it has to go; another start then follows in any case.
    """

    reason: str
    status: int = 1
    again: bool = False
    spoilt: str | None = None


class Stopping(Exception):  # noqa: N818 - not an error: somebody asked for the end
    """SIGTERM came."""


class Life:
    """One start of the engine and what follows it."""

    def __init__(self, guardian: Guardian, engine: Engine) -> None:
        self.guardian = guardian
        self.engine = engine
        self.orders = guardian.orders
        self.watchdog = Watchdog(rundir.clock(), self.orders.start, self.orders.progress)
        self.tree: list[psutil.Process] = []
        self._proven: dict[int, str] = {}
        """Role by pid of the processes that have proven the plugin."""
        self._held_since: dict[int, float] = {}
        self._stalled_since: float | None = None
        self._first_tokens: FirstTokens | None = None
        self._said: str | None = None

    @property
    def phase(self) -> PhaseFile:
        """The phase that it is in."""
        return self.guardian.phase

    def watch(self) -> Ending:
        """Watch until the engine ends or must end; the caller kills what is left. Raises Stopping after a drain."""
        looked = 0.0
        while True:
            try:
                self.guardian.check_asked()
            except Stopping:
                self._drain()
                raise
            self._read_lines()
            code = self.engine.returncode()
            if code is not None:
                return self._died(code)
            now = rundir.clock()
            if now - looked >= LOOK_EVERY:
                looked = now
                if ending := self._look(now):
                    return ending
                self.phase.write()
            self.guardian.pause()

    def _read_lines(self) -> None:
        now = rundir.clock()
        for line in self.engine.lines():
            if self.phase.name == "ready":
                continue
            if line.progress:
                self.watchdog.line(now, line.key, line.text[:200])
            if line.bar or line.loaded:
                self.phase.progress((line.bar or line.text)[:200])
            if line.loaded and self.phase.name in ("starting", "loading"):
                self._reach("warming")

    def _reach(self, phase: str) -> None:
        self.watchdog.milestone(rundir.clock(), f"phase {phase}")
        self.phase.enter(phase)

    def _look(self, now: float) -> Ending | None:
        self.tree = processes.tree()
        processes.reap(spare=self.engine.pid)
        self._note_stopped(now)
        self._note_proofs()
        if ending := self.guardian.lost_gpu() or self._lost_process():
            return ending
        if self.phase.name == "ready":
            return self._stall(now)
        if self.phase.name == "starting" and any(self.phase.record.plugins.values()):
            self._reach("loading")
        if self.phase.name in ("starting", "loading"):
            self.watchdog.read(now, *bytes_read(self.tree))
        if ending := self._answers(now):
            return ending
        verdict = None if self.phase.name == "ready" else self.watchdog.verdict(now, self.phase.name)
        if verdict:
            self._dump(verdict)
            return Ending(f"{verdict}; the stacks are in the log")
        return None

    def _note_stopped(self, now: float) -> None:
        held = processes.stopped(self.tree)
        self._held_since = {pid: self._held_since.get(pid, now) for pid in held}
        stopped = tuple(StoppedProcess(pid, name, self._held_since[pid]) for pid, name in held.items())
        self.phase.record = replace(self.phase.record, stopped=stopped)

    def _note_proofs(self) -> None:
        alive = {one.pid for one in self.tree}
        self.phase.record = replace(self.phase.record, plugins=plugin_proof.proven(self.guardian.run_dir, alive))
        for proof in plugin_proof.read_all(self.guardian.run_dir):
            if proof.pid in alive and proof.role in plugin_proof.ROLES:
                self._proven[proof.pid] = proof.role

    def _lost_process(self) -> Ending | None:
        """Notice an engine core that went while the API server still stands: vLLM itself takes seconds to."""
        alive = {one.pid for one in self.tree}
        names = ", ".join(f"{role} process {pid}" for pid, role in self._proven.items() if pid not in alive)
        if not names:
            return None
        what = f"the engine's {names} ended"
        where = self.phase.name
        self.phase.enter("dead", what)
        end = rundir.clock() + LOST_SECONDS
        while self.engine.returncode() is None and rundir.clock() < end:
            self.phase.write()
            self.guardian.pause()
        # A worker that refuses to start takes its core with it; the server's status says that it was no failure.
        return self._died(2) if self.engine.returncode() == 2 else self._failed(what, where)

    def _answers(self, now: float) -> Ending | None:
        """Become ready when the engine lists the model, has proven its plugin and has given tokens.

        Without the proof it is not served.
        """
        if self._first_tokens is not None and self._first_tokens.status == 0:
            # It lists its model already, and would log each further question.
            self._note_asking(now, self._first_tokens.doing)
            return None
        answer = self.orders.api.models()
        if answer is None:
            return None
        if self.orders.model not in answer:
            self._say_once(f'the engine lists {", ".join(answer) or "no model"}, not "{self.orders.model}"')
            return None
        self._note_proofs()
        missing = [role for role, loaded in self.phase.record.plugins.items() if not loaded]
        if missing:
            why = "; ".join(plugin_proof.errors(self.guardian.run_dir)) or "no process of the engine left a proof"
            return Ending(
                f"the engine answers, but nothing proves that the appliance's plugin is loaded in: "
                f"{', '.join(missing)} ({why}); it is not served. Reinstall the appliance beside vLLM: its entry "
                "points are missing or broken"
            )
        first = self._gives_tokens(now)
        if first is None:
            return None
        if spoilt := self.guardian.cache.judged(first.tokens):
            return Ending(spoilt, again=True, spoilt=WARM_TOKENS_DIFFER)
        self.phase.record = replace(self.phase.record, models=tuple(answer), progress=None)
        self.guardian.became_ready(first.tokens.tokens)
        self.phase.enter("ready")
        return None

    def _gives_tokens(self, now: float) -> FirstTokens | None:
        if self._first_tokens is None:
            if self.phase.name != "warming":
                self._reach("warming")
            cache = self.guardian.cache
            self._first_tokens = FirstTokens(self.orders, gated=cache.gated, expected=cache.tokens)
            self._note_asking(now, self._first_tokens.doing)
        status = self._first_tokens.status
        if status == 0:
            return None
        if unanswered(status):
            self._say_once(f"the engine gave no first tokens (HTTP status {status}); asking again")
            self._first_tokens = None
        return self._first_tokens

    def _note_asking(self, now: float, what: str) -> None:
        self.phase.progress(what)
        self.watchdog.line(now, what, f"the engine was asked for its {what}")

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.guardian.say(text)

    def _stall(self, now: float) -> Ending | None:
        report = judge.report(self.guardian.run_dir)
        if report.phase != "stalled":
            if self._stalled_since is not None:
                self.guardian.say("the engine works again")
            self._stalled_since = None
            return None
        if self._stalled_since is None:
            self._stalled_since = now
            self._dump(f"stalled: {report.reason}")
        if now - self._stalled_since < self.orders.stall_grace:
            return None
        return Ending(f"the engine stalled: {report.reason}; the stacks are in the log", again=True)

    def _dump(self, why: str) -> None:
        self.guardian.say(why)
        evidence.collect(self.tree, self.guardian.say)

    def _died(self, code: int) -> Ending:
        # What it wrote last is still in the pipe.
        self.engine.kill()
        cause = self.engine.errors.best
        if code == 2:
            return Ending(f"the engine refused its options (exit status 2){f': {cause}' if cause else ''}", status=2)
        return self._failed(f"the engine ended by itself with {processes.ending(code)}", self.phase.name)

    def _failed(self, what: str, phase: str) -> Ending:
        cause = self.engine.errors.best
        where = "" if phase == "ready" else f" in phase {phase}"
        lost = self.guardian.lost_gpu()
        return lost or Ending(f"{what}{where}{f': {cause}' if cause else ''}", again=True)

    def _drain(self) -> None:
        """Let running requests finish within the drain time, then end the engine, all within a bound."""
        was_ready = self.phase.name == "ready"
        began = rundir.clock()
        self.phase.enter("draining", "asked to stop; running requests may finish, new ones are refused")
        while was_ready and self.engine.returncode() is None and rundir.clock() - began < self.orders.drain:
            beat = Heartbeat.read(self.guardian.run_dir) or Heartbeat()
            if (beat.at or 0.0) - began > SETTLE_SECONDS and not beat.in_flight:
                break
            self.phase.write()
            self.guardian.pause()
        else:
            beat = Heartbeat.read(self.guardian.run_dir) or Heartbeat()
            if was_ready and beat.in_flight:
                self.guardian.say(
                    f"{beat.in_flight} requests did not finish within {self.orders.drain:.0f} s and are cut off"
                )
        self.engine.ask_to_stop()
        end = rundir.clock() + STOP_SECONDS
        while self.engine.returncode() is None and rundir.clock() < end:
            self.phase.write()
            self.guardian.pause()
        if self.engine.returncode() is None:
            self.guardian.say(f"the engine did not end within {STOP_SECONDS:.0f} s of SIGTERM and is killed")
