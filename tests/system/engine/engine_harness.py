"""The real engine as a child process, and a stand-in for the guardian that watches it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from appliance import rundir
from appliance.health import judge
from appliance.rundir import plugin_proof
from tests.waiting import free_port, until

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE_S = 4.0
"""Short, so that a stall shows soon; a beat a second still fits several times."""

START_S = 300.0


@cache
def vllm_cache() -> Path:
    """Return one folder for all engines of this run, removed at its end.

    vLLM keeps there what it asked of a model's class, in a process that imports everything and takes 20 s.
    """
    folder = tempfile.mkdtemp(prefix="vllm-cache-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def environment(home: Path, **changes: str) -> dict[str, str]:
    """What the engine needs where there is no network, with all that it writes under `home` or `vllm_cache`."""
    own = {
        "HOME": str(home),
        "VLLM_CACHE_ROOT": str(vllm_cache()),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return {**os.environ, **own, **changes}


class Engine:
    """One `python -m appliance.vllm_plugin.server.serve` on SmolLM2, with what the launcher adds to its arguments."""

    def __init__(self, model: Path, folder: Path, *arguments: str, **variables: str) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir(parents=True)
        self.port = free_port()
        self.log = folder / "engine.log"
        command = [sys.executable, "-m", "appliance.vllm_plugin.server.serve"]
        command += ["--model", str(model), "--served-model-name", "smol"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", "2048", "--enforce-eager"]
        command += ["--middleware", "appliance.vllm_plugin.server.in_flight.InFlight"]
        command += ["--scheduler-cls", "appliance.vllm_plugin.progress.scheduler.recording_scheduler", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(folder, APPLIANCE_RUN_DIR=str(self.run_dir), **variables),
                cwd=folder,
                start_new_session=True,
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120, trust_env=False)
        rundir.write(self.run_dir, rundir.PLAN, {"profile": "portable_smollm2", "expected_acceleration": []})
        self.guardian = Guardian(self)

    def models(self) -> list[str]:
        """The models that it lists; none while it does not answer."""
        with suppress(httpx.HTTPError, ValueError):
            answer = httpx.get(f"{self.http.base_url}/v1/models", timeout=2, trust_env=False)
            return [model["id"] for model in answer.json()["data"]]
        return []

    def wait(self) -> None:
        """Wait until it serves."""

        def serves() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return self.models() == ["smol"]

        until(serves, every_s=0.5, limit_s=START_S)
        self.guardian.enter("ready")
        until(self.heartbeat)

    def tree(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.process.pid)
            return [main, *main.children(recursive=True)]
        return []

    def pid(self, role: str) -> int:
        """The living process that proved the plugin as `role`."""
        alive = {process.pid for process in self.tree()}
        (pid,) = (one.pid for one in plugin_proof.read_all(self.run_dir) if one.role == role and one.pid in alive)
        return int(pid)

    def heartbeat(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.HEARTBEAT) or {}

    def report(self) -> judge.Report:
        return judge.report(self.run_dir)

    def steps(self) -> list[dict[str, Any]]:
        file = self.run_dir / rundir.STEPS
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def settle(self) -> None:
        """Wait until it is idle and all that it did has been written down."""

        def idle() -> bool:
            beat, steps = self.heartbeat(), self.steps()
            written = steps[-1]["step"] if steps else 0
            return beat["busy_since"] is None and not beat["in_flight"] and written == beat["step"]

        until(idle)
        last = self.heartbeat()
        # A request that ended within the last beat shows in the next one.
        until(lambda: self.heartbeat()["at"] > last["at"] + 1 and idle())

    def complete(self, prompt: str, tokens: int, **options: Any) -> dict[str, Any]:
        """One greedy completion of exactly `tokens` tokens."""
        answer = self.http.post("/v1/completions", json=body(prompt, tokens, **options))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    @contextmanager
    def streaming(self, prompt: str, tokens: int, **options: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """A streamed completion: its pieces as they come. Leaving it early closes the connection."""
        request = body(prompt, tokens, stream=True, **options)
        with self.http.stream("POST", "/v1/completions", json=request) as answer:
            assert answer.status_code == 200
            yield (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {"))

    @contextmanager
    def held(self, role: str) -> Iterator[None]:
        """SIGSTOP the process of `role` for as long as the context lasts."""
        pid = self.pid(role)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        self.guardian.stop()
        self.http.close()
        tree = self.tree()
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in psutil.wait_procs(tree, timeout=10)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def body(prompt: str, tokens: int, **options: Any) -> dict[str, Any]:
    # Greedy: the CPU engine compiles its sampler for half a minute at the first request that is not.
    return {"model": "smol", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **options}


class Guardian:
    """Writes phase.json as the entrypoint's guardian does, which has tests of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._phase = "starting"
        self._started = self._since = rundir.clock()
        self._held: dict[int, float] = {}
        self._models: list[str] = []
        self._writing = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def enter(self, phase: str) -> None:
        self._phase, self._since = phase, rundir.clock()
        self._models = self._engine.models() or self._models
        self._write()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.5):
            self._write()

    def _write(self) -> None:
        with self._writing, suppress(OSError):
            rundir.write(self._engine.run_dir, rundir.PHASE, self._record())

    def _record(self) -> dict[str, Any]:
        now, alive = rundir.clock(), self._engine.tree()
        stopped = {}
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    stopped[process.pid] = process.name()
        self._held = {pid: self._held.get(pid, now) for pid in stopped}
        return {
            "phase": self._phase,
            "started": self._started,
            "since": self._since,
            "at": now,
            "budget_s": START_S,
            "stall_grace_s": GRACE_S,
            "reason": None,
            "pid": self._engine.process.pid,
            "stopped": [{"pid": pid, "name": name, "since": self._held[pid]} for pid, name in stopped.items()],
            "models": self._models,
            "plugins": plugin_proof.proven(self._engine.run_dir, {process.pid for process in alive}),
            "restarts": 0,
            "progress": None,
        }
