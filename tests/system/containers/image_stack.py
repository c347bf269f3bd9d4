"""Images built from this tree, and compose projects of them that are always cleaned up."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import docker
import httpx
import testinfra

from appliance.paths import ROOT
from tests.waiting import free_port, until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILES = ("compose.yaml", "compose.portable.yaml")
MODEL = "smollm2-135m-instruct"
HEALTHCHECKS = "/opt/appliance/healthchecks"
RUN = "/run/appliance"
GIVEN = ("ENGINE_IMAGE", "SIDECAR_IMAGE")
"""Variables of compose.yaml that name images made before; when both are set nothing is built."""

START_S = 900
"""A start, with the conversion of the model and a compiler's run, on a busy machine."""
BUILD_S = 2400
DRAIN_S = 300


def environment(**more: str) -> dict[str, str]:
    """This process's, less what would configure an appliance or a compose project."""
    kept = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "http_proxy", "https_proxy", "no_proxy", *GIVEN)
    return {**{name: value for name, value in os.environ.items() if name in kept}, **more}


def run(*command: str, timeout: float = 120.0, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command; its words are in the failure."""
    options = {"env": environment(), **options}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


def build(*targets: str) -> None:
    """Build the images of `targets` from this tree, unless others are given; what is unchanged takes seconds."""
    if all(os.environ.get(name) for name in GIVEN):
        return
    for target in targets:
        command = (str(ROOT / "config/image/build.sh"), target, f"v100-appliance:{target}", "--progress=plain")
        run(*command, timeout=BUILD_S, env={**os.environ})


class Stack:
    """One compose project of the portable engine, laid into a folder of its own. Use as a context."""

    def __init__(
        self, folder: Path, models: Path, *, override: Mapping[str, Any] | None = None, **variables: str
    ) -> None:
        self.folder = folder
        self.project = f"appliance-test-{os.getpid()}-{folder.name}".replace("_", "-").lower()
        self.port, self.sidecar_port = free_port(), free_port()
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        self._files = [*FILES]
        if override is not None:
            (folder / "override.yaml").write_text(json.dumps(override))
            self._files.append("override.yaml")
        settings = {
            "APPLIANCE_PORT": str(self.port),
            "APPLIANCE_SIDECAR_PORT": str(self.sidecar_port),
            "APPLIANCE_MODELS_DIR": str(models),
            # A busy machine is no hung engine.
            "APPLIANCE_START_BUDGET": str(START_S),
            "APPLIANCE_PROGRESS_BUDGET": str(START_S),
            "TORCH_COMPILE_DISABLE": "1",
            "HEALTH_START": f"{START_S}s",
            # Threads that wait for each other's steps crawl there.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "APPLIANCE_DRAIN": str(DRAIN_S),
            "STOP_GRACE": f"{DRAIN_S + 60}s",
            **variables,
        }
        (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        key = folder / variables["APPLIANCE_API_KEY_FILE"] if "APPLIANCE_API_KEY_FILE" in variables else None
        headers = {"Authorization": f"Bearer {key.read_text().strip()}"} if key else {}
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=120, trust_env=False
        )
        self.sidecar = httpx.Client(base_url=f"http://127.0.0.1:{self.sidecar_port}", timeout=10, trust_env=False)
        self._docker = docker.from_env()

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_error: object) -> None:
        self.http.close()
        self.sidecar.close()
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "1", check=False)
        self._docker.close()

    def compose(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `docker compose` on this project."""
        files = [word for name in self._files for word in ("-f", name)]
        return run("docker", "compose", "-p", self.project, *files, *words, cwd=self.folder, **options)

    def up(self, *services: str) -> None:
        """Create and start the containers."""
        self.compose("up", "--detach", "--no-build", *services)

    def container(self, service: str) -> Any:
        """What docker-py knows of a service's container, fresh."""
        (name,) = self.compose("ps", "--all", "--quiet", service).stdout.split()
        return self._docker.containers.get(name)

    def host(self, service: str = "engine") -> Any:
        """The inside of a container, for testinfra."""
        return testinfra.get_host(f"docker://{self.container(service).id}")

    def sh(self, script: str, service: str = "engine", check: bool = True) -> str:
        """What a shell inside prints, as the container's own user."""
        return run("docker", "exec", self.container(service).id, "sh", "-c", script, check=check).stdout

    def log(self, service: str = "engine") -> str:
        """All that the container said."""
        return str(self.container(service).logs().decode(errors="replace"))

    def record(self, name: str) -> dict[str, Any]:
        """A file of the run directory; empty when it is not there."""
        text = self.sh(f"cat {RUN}/{name} 2>/dev/null || true")
        return dict(json.loads(text)) if text.strip() else {}

    def probe(self, name: str) -> tuple[int, dict[str, Any]]:
        """The exit status and the answer of an exec probe."""
        done = run("docker", "exec", self.container("engine").id, f"{HEALTHCHECKS}/{name}", check=False)
        return done.returncode, json.loads(done.stdout)

    def health(self, name: str) -> tuple[int, dict[str, Any]]:
        """The sidecar's answer."""
        answer = self.sidecar.get(f"/health/{name}")
        return answer.status_code, answer.json()

    def docker_health(self, service: str) -> str:
        """What Docker's own health check says."""
        return str(self.container(service).attrs["State"]["Health"]["Status"])

    def wait_ready(self, restarts: int | None = None) -> None:
        """Wait until the engine serves; with `restarts`, after so many of them inside the container."""

        def ready() -> bool:
            container = self.container("engine")
            assert container.status == "running", "the container has ended"
            assert container.attrs["RestartCount"] == 0, "the container was started again"
            code, report = self.probe("ready")
            return code == 0 and restarts in (None, report["details"]["restarts"])

        try:
            until(ready, every_s=1.0, limit_s=START_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; the engine's container said:\n{self.log()[-4000:]}") from error

    def pid(self, role: str) -> int:
        """The process that proved the plugin as `role`, by its number inside the container."""
        found = self.sh(f"cat {RUN}/plugins/*.json").splitlines()
        alive = set(map(int, re.findall(r"\d+", self.sh("ls -d /proc/[0-9]*"))))
        (pid,) = {one["pid"] for one in map(json.loads, found) if one["role"] == role and one["pid"] in alive}
        return int(pid)

    def chat(self, tokens: int, **options: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=body(tokens, **options))

    def stream(self, tokens: int, **options: Any) -> list[dict[str, Any]]:
        """The pieces of a streamed chat, which must end as the protocol says."""
        with self.http.stream("POST", "/v1/chat/completions", json=body(tokens, stream=True, **options)) as answer:
            assert answer.status_code == 200
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


def body(tokens: int, **options: Any) -> dict[str, Any]:
    question = {"role": "user", "content": "Name the capital of France."}
    return {"model": MODEL, "messages": [question], "max_tokens": tokens, "temperature": 0, **options}
