"""`appliance serve` as a child process on a machine that has vLLM alone: its phases timed, and asked over HTTP."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import psutil

from appliance import rundir
from appliance.health import judge
from appliance.rundir import plugin_proof
from appliance.rundir.phase import ON_THE_WAY, Phase
from tests.waiting import free_port

if TYPE_CHECKING:
    from pathlib import Path

START_S = 900.0
"""A cold start with kernels compiled and graphs captured, on a GPU that compiles PTX."""
STOP_S = 120.0
WISHED = {
    "prompt": list(range(20, 120)),
    "max_tokens": 16,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}


class StartError(RuntimeError):
    """The appliance ended, or did not get where it was to get in time: one line."""


class Appliance:
    """One `appliance serve`, with a key of its own."""

    def __init__(self, state_dir: Path, log: Path, *words: str, **variables: str) -> None:
        """Start it with `words` after its addresses, and with `variables` in its environment."""
        self.run_dir, self.log = state_dir / "run", log
        self.port, self.sidecar_port = free_port(), free_port()
        self.key = secrets.token_hex(16)
        command = [sys.executable, "-m", "appliance.cli", "serve", "--state-dir", str(state_dir)]
        command += ["--port", str(self.port), "--sidecar-port", str(self.sidecar_port), *words]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
        self.environment = {**inherited, **variables, "APPLIANCE_API_KEY": self.key}
        # A record of an earlier start tells of its phases.
        (self.run_dir / rundir.PHASE).unlink(missing_ok=True)
        self._began = time.monotonic()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def phases(self, restarts: int = 0, seconds: float = START_S) -> dict[str, float]:
        """Wait until it serves; returns how long each phase took.

        Before the first of them come `checks`, or after a core that was killed `noticing`. Raises StartError where it
        ends or takes longer.
        """
        found: dict[str, float] = {}
        last, began = ("noticing", time.monotonic()) if restarts else ("checks", self._began)
        since = began
        while True:
            if self.process.poll() is not None:
                raise StartError(f"it ended with status {self.process.returncode}: {self._last_line()}")
            now = time.monotonic()
            if now - began > seconds:
                raise StartError(f"phase {last} after {seconds:.0f} s: {self._last_line()}")
            phase = Phase.read(self.run_dir)
            if phase is not None and phase.phase != last and (phase.restarts or 0) == restarts:
                found[last] = round(found.get(last, 0.0) + now - since, 1)
                last, since = str(phase.phase), now
                if last not in ON_THE_WAY and last != "dead":
                    return found
            time.sleep(0.1)

    def report(self) -> judge.Report:
        """Return the judgement of its health."""
        return judge.report(self.run_dir)

    def pid(self, role: str) -> int:
        """Return the living process that proved the plugin as `role`. Raises StartError where there is none."""
        alive = {one.pid for one in psutil.Process(self.process.pid).children(recursive=True)}
        found = [one.pid for one in plugin_proof.read_all(self.run_dir) if one.role == role and one.pid in alive]
        if len(found) != 1:
            raise StartError(f"{len(found)} processes prove the plugin as {role}; wanted is 1")
        return found[0]

    def ask(self, path: str, wish: dict[str, Any] | None = None, *, sidecar: bool = False) -> tuple[int, Any]:
        """Return status and answer, JSON where it is JSON; status 0 where nobody answers."""
        port = self.sidecar_port if sidecar else self.port
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            None if wish is None else json.dumps(wish).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=300) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        except OSError as error:
            return 0, str(error)
        try:
            return status, json.loads(body)
        except ValueError:
            return status, body.decode(errors="replace")

    def tokens(self) -> list[int]:
        """Return the greedy tokens after a fixed prompt. Raises StartError for any other answer."""
        _, models = self.ask("/v1/models")
        status, answer = self.ask("/v1/completions", {"model": models["data"][0]["id"], **WISHED})
        if status != 200:
            raise StartError(f"/v1/completions answers {status}: {answer}")
        return list(answer["choices"][0]["token_ids"])

    def counters(self) -> dict[str, int]:
        """Return rank 0's counters as they were last written."""
        record = rundir.read(self.run_dir / rundir.RANKS, "0.json") or {}
        return dict(record.get("counters") or {})

    def bench(self, verb: str, out: Path, *words: str) -> dict[str, Any]:
        """Run `appliance bench VERB` and return its result. Raises StartError where it gives none."""
        command = [sys.executable, "-m", "appliance.cli", "bench", verb, "--run-dir", str(self.run_dir), "--quiet"]
        done = subprocess.run(
            [*command, "--out", str(out), *words], env=self.environment, capture_output=True, text=True, check=False
        )
        written = sorted(out.glob(f"{verb}-*.json"))
        if not written:
            raise StartError(f"bench {verb} ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
        return {"status": done.returncode, **json.loads(written[-1].read_text())}

    def kill_core(self) -> None:
        """End the engine's core as the kernel's out-of-memory killer would."""
        os.kill(self.pid("core"), signal.SIGKILL)

    def stop(self) -> dict[str, Any]:
        """Send SIGTERM; returns the exit status, the seconds, and how many processes were left."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        began = time.monotonic()
        self.process.terminate()
        try:
            status: int | None = self.process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            status = None
        left = [one for one in psutil.wait_procs(below, timeout=5)[1] if one.status() != psutil.STATUS_ZOMBIE]
        return {"status": status, "seconds": round(time.monotonic() - began, 1), "left": len(left)}

    def end(self) -> None:
        """Kill whatever of it still runs."""
        if self.process.poll() is None:
            for one in [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]:
                one.kill()
            self.process.wait()

    def _last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"
