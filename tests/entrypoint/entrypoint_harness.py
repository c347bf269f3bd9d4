"""A program under test over the fake engine: what it wrote, what it runs, and its end."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import psutil

from appliance.health import rundir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Started:
    """One process, its output in the file `output` of `folder`."""

    PATIENCE_S = 30.0

    def __init__(
        self, folder: Path, run_dir: Path, command: list[str], environment: dict[str, str], **options: Any
    ) -> None:
        self.run_dir = run_dir
        self.output = (folder / "output").open("w+b")
        self._file = folder / "output"
        options = {"stdout": self.output, "stderr": self.output} | options
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
    def cache(self) -> dict[str, Any]:
        return rundir.read(self.run_dir, rundir.CACHE) or {}

    def wait(self, reached: Callable[[], Any]) -> None:
        end = time.monotonic() + self.PATIENCE_S
        while not reached():
            assert time.monotonic() < end, f"{self.phase} {self.ending}\n{self.log[-4000:]}"
            time.sleep(0.05)

    def until(self, phase: str) -> dict[str, Any]:
        self.wait(lambda: self.phase.get("phase") == phase)
        return self.phase

    def finish(self) -> int:
        return self.process.wait(timeout=40)

    def tree(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        left = self.tree() if self.process.poll() is None else []
        for process in [self.process, *left]:
            process.kill()
        self.process.wait()
        self.output.close()
