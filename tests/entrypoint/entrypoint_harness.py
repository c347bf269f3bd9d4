"""A program under test over the fake engine: what it wrote, what it runs, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from appliance import rundir
from tests.waiting import LIMIT_S, free_port, until

if TYPE_CHECKING:
    from collections.abc import Callable


DATA = Path(__file__).parent / "data"
KEY = "a-very-secret-key"


class Started:
    """One process, its output in the file `output` of `folder`."""

    def __init__(
        self, folder: Path, run_dir: Path, command: list[str], environment: dict[str, str], **options: Any
    ) -> None:
        self.run_dir = run_dir
        self.output = (folder / "output").open("w+b")
        self._file = folder / "output"
        options = {"stdout": self.output, "stderr": self.output} | options
        # A killed guardian leaves its temporary folder.
        environment = environment | {"TMPDIR": str(folder)}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, **options)

    @property
    def log(self) -> str:
        return self._file.read_text(errors="replace")

    @property
    def phase(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.PHASE) or {}

    @property
    def ending(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.EXIT) or {}

    @property
    def heartbeat(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.HEARTBEAT) or {}

    @property
    def cache(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.CACHE) or {}

    def wait(self, reached: Callable[[], Any]) -> None:
        until(reached, lambda: f"{self.phase} {self.ending}\n{self.log[-4000:]}", every_s=0.05)

    def until(self, phase: str) -> dict[str, Any]:
        self.wait(lambda: self.phase.get("phase") == phase)
        return self.phase

    def finish(self) -> int:
        return self.process.wait(timeout=LIMIT_S)

    def tree(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        left = self.tree() if self.process.poll() is None else []
        self.process.kill()
        for process in left:
            process.kill()
        self.process.wait()
        self.output.close()


class Guarded(Started):
    """A guardian over the fake engine, on a clock of its own, with budgets that only a hung start uses up.

    `tmpfs` are words before a shell command that may mount one: the run directory is then on half a megabyte.
    """

    def __init__(
        self,
        folder: Path,
        mode: str,
        command: list[str] | None = None,
        tmpfs: list[str] | None = None,
        **changes: Any,
    ) -> None:
        self.port = free_port()
        health = {"start": 3600, "progress": 3600, "stall_grace": 3600, "drain": 60}
        settings = {"host": "127.0.0.1", "port": self.port, "on_engine_exit": "restart", "max_restarts": 1}
        health |= {name: value for name, value in changes.items() if name in health}
        settings |= {"cache_dir": str(folder / "cache"), "cache_days": 90, "cache_gigabytes": 50}
        settings |= {name: value for name, value in changes.items() if name in settings}
        inside = folder / "run" if tmpfs else folder
        inside.mkdir(exist_ok=True)
        environment = {"APPLIANCE_RUN_DIR": str(inside), **changes.get("environment", {})}
        (folder / "model").mkdir(exist_ok=True)
        (folder / "model" / "config.json").write_text("{}")
        plan = {
            "command": command or [sys.executable, str(DATA / "fake_engine.py"), mode, str(self.port), "small"],
            "environment": {
                name: {"value": value, "source": f"environment {name}"} for name, value in environment.items()
            },
            "arguments": {},
            "model": {"folder": str(changes.get("model", folder / "model"))},
            "engine": "portable",
            "machine": {"gpus": []},
            "settings": {name: {"value": value, "source": "default"} for name, value in settings.items()},
            "served_model_name": "small",
            "gpus": [],
            "health": health,
            "expected_acceleration": [],
        }
        rundir.clear(folder)
        rundir.write(folder, rundir.PLAN, plan)
        self._ahead, self._parts = 0.0, inside / "parts"
        self._clock = folder / "clock"
        self.ahead(0)
        guardian = [sys.executable, "-P", str(DATA / "guardian_on_clock.py"), str(self._clock)]
        if tmpfs:
            mounts = 'mount -t tmpfs -o size=512k none "$1/run" && cp "$1/plan.json" "$1/run" && shift && exec "$@"'
            guardian = [*tmpfs, "sh", "-c", mounts, "sh", str(folder), *guardian]
        variables = {**os.environ, "APPLIANCE_RUN_DIR": str(inside), "VLLM_API_KEY": KEY}
        super().__init__(folder, inside, guardian, variables)
        if tmpfs:
            # Nobody but the guardian's own namespace has it mounted.
            self.run_dir = Path(f"/proc/{self.process.pid}/root{inside}")

    def ahead(self, seconds: float) -> None:
        """Move the guardian's clock forward."""
        self._ahead += seconds
        temporary = self._clock.with_suffix(".new")
        temporary.write_text(str(self._ahead))
        temporary.replace(self._clock)

    def load_parts(self, number: int) -> None:
        """Let a fake engine in the mode `slow` load so many of its ten parts.

        Waits until the guardian has seen all but the last: a bar ends where the next begins.
        """
        self._parts.write_text(str(number))
        self.wait(lambda: number == 1 or f"checkpoint shards {number - 1}/10" in str(self.phase.get("progress")))

    def load_all(self) -> None:
        """Let it load all that is left."""
        self._parts.write_text("10")

    def post(self, seconds: float) -> bytes:
        steps = int(seconds * 4)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/x/{steps}", data=b"", timeout=LIMIT_S) as answer:
            return bytes(answer.read())
