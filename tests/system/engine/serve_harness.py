"""`appliance serve` as a child process, and a client of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil

from appliance import rundir
from appliance.health import judge
from appliance.rundir import plugin_proof
from tests.waiting import free_port, until

KEY = "sk-test-5f2c9e71d0"
TOKEN = "hf_test_77aa01b2c3"
GRACE_S = 8
START_S = 400.0
MODEL = "smollm2-135m-instruct"


class Server:
    """One `appliance serve` and a client of it."""

    def __init__(
        self,
        model: Path,
        state_dir: Path,
        log: Path,
        *arguments: str,
        key: str = KEY,
        profile: str = "portable_smollm2",
        served: str = MODEL,
    ) -> None:
        self.served = served
        self.run_dir = state_dir / "run"
        self.port, self.sidecar_port = free_port(), free_port()
        self.log_file = log
        command = [str(Path(sys.executable).with_name("appliance")), "serve", "--profile", profile]
        command += ["--model", str(model), "--state-dir", str(state_dir), "--port", str(self.port)]
        command += ["--sidecar-port", str(self.sidecar_port), "--stall-grace", str(GRACE_S), *arguments]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("APPLIANCE_", "VLLM_"))}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env={**inherited, "APPLIANCE_API_KEY": key, "HF_TOKEN": TOKEN},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        headers = {"Authorization": f"Bearer {key}"}
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=120, trust_env=False
        )
        self.seen: dict[int, psutil.Process] = {}
        """Every process that was ever found below it."""

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def phase(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.PHASE) or {}

    @property
    def heartbeat(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.HEARTBEAT) or {}

    @property
    def cache(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.CACHE) or {}

    def report(self) -> judge.Report:
        return judge.report(self.run_dir)

    def health(self, probe: str) -> tuple[int, dict[str, Any]]:
        answer = httpx.get(f"http://127.0.0.1:{self.sidecar_port}/health/{probe}", timeout=5, trust_env=False)
        return answer.status_code, answer.json()

    def wait_ready(self, restarts: int = 0, seconds: float = START_S) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log[-4000:]
            return self.report().ready_ok and self.phase["restarts"] == restarts

        until(ready, every_s=0.25, limit_s=seconds)
        self.look()

    def look(self) -> list[psutil.Process]:
        """Return the processes below it, and remember them."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        self.seen |= {process.pid: process for process in found}
        return found

    def pid(self, role: str) -> int:
        alive = {process.pid for process in self.look()}
        (pid,) = (one.pid for one in plugin_proof.read_all(self.run_dir) if one.role == role and one.pid in alive)
        return int(pid)

    def chat(self, tokens: int, **options: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=self.body(tokens, **options))

    def body(self, tokens: int, **options: Any) -> dict[str, Any]:
        return body(tokens, **{"model": self.served, **options})

    def stream(self, tokens: int, **options: Any) -> list[dict[str, Any]]:
        """The pieces of a streamed chat, which must end as the protocol says."""
        with self.http.stream("POST", "/v1/chat/completions", json=self.body(tokens, stream=True, **options)) as answer:
            assert answer.status_code == 200
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def left(self) -> list[psutil.Process]:
        """What still runs of all that was ever seen."""
        psutil.wait_procs(list(self.seen.values()), timeout=10)
        return [one for one in self.seen.values() if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    def stop(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            for process in [*self.look(), psutil.Process(self.process.pid)]:
                process.kill()
            self.process.wait()
        for process in self.left():
            process.kill()


def body(tokens: int, **options: Any) -> dict[str, Any]:
    question = {"role": "user", "content": "Name the capital of France."}
    return {"model": MODEL, "messages": [question], "max_tokens": tokens, "temperature": 0, **options}
