"""`docker compose up` with the engine for CPUs: what an operator gets, and what happens when things go wrong.

The tests share one stack and build on each other, the destructive ones last: a start takes most of a minute.
"""

from __future__ import annotations

import json
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.system.containers.image_stack import BUILD_S, DRAIN_S, START_S, Stack, run
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.image, pytest.mark.timeout(BUILD_S + 2 * START_S)]

KEY = "sk-test-8d1f4c22e97b"
TOKEN = "token-test-0b6e3a71cc"
GRACE_S = 8
UID = 4711


@pytest.fixture(scope="module")
def stack(images: None, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One project with a key, a token, and a user id that no image knows."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "key").write_text(KEY + "\n")
    (folder / "token").write_text(TOKEN + "\n")
    with Stack(
        folder,
        models,
        RUN_AS=str(UID),
        APPLIANCE_API_KEY_FILE="./key",
        APPLIANCE_SIDECAR_TOKEN_FILE="./token",
        APPLIANCE_STALL_GRACE=str(GRACE_S),
    ) as started:
        started.up()
        yield started


def processes(stack: Stack, service: str) -> dict[int, dict[str, str]]:
    """What /proc/PID/status says of every process of a container."""
    text = stack.sh("for one in /proc/[0-9]*/status; do cat $one 2>/dev/null && echo; done; true", service)
    found = {}
    for block in text.strip().split("\n\n"):
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in block.splitlines())}
        found[int(status["Pid"])] = status
    return found


def test_engine_and_sidecar_become_healthy(stack: Stack) -> None:
    until(lambda: stack.docker_health("sidecar") == "healthy")
    assert stack.docker_health("engine") == "starting"
    stack.wait_ready()
    until(lambda: stack.docker_health("engine") == "healthy")


def test_the_exec_probes_and_the_sidecar_say_the_same(stack: Stack) -> None:
    stack.wait_ready()
    for name in ("startup", "live", "ready"):
        code, answer = stack.probe(name)
        status, told = stack.health(name)
        assert (code, status) == (0, 200), name
        assert (answer["probe"], answer["phase"]) == (told["probe"], told["phase"]) == (name, "ready")


def test_a_chat_is_answered_with_the_key_and_refused_without(stack: Stack) -> None:
    stack.wait_ready()
    answer = stack.chat(16)
    assert answer.status_code == 200
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    url = f"{stack.http.base_url}/v1/models"
    assert httpx.get(url, timeout=10, trust_env=False).status_code == 401


def test_a_chat_that_samples_is_answered(stack: Stack) -> None:
    """The engine for CPUs compiles its sampler then: the image must hold what that takes."""
    stack.wait_ready()
    answer = stack.chat(8, temperature=0.7)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("service", ["engine", "sidecar"])
def test_every_process_is_without_power(stack: Stack, service: str) -> None:
    stack.wait_ready()
    found = processes(stack, service)
    assert len(found) > (4 if service == "engine" else 1)
    for pid, status in found.items():
        assert status["Uid"].split() == [str(UID)] * 4, pid
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}, pid
        assert status["NoNewPrivs"] == "1", pid


@pytest.mark.parametrize("service", ["engine", "sidecar"])
def test_nothing_can_be_written_outside_the_volumes(stack: Stack, service: str) -> None:
    for folder in ("/", "/opt/appliance", "/opt/venv", "/usr/bin", "/etc"):
        assert stack.sh(f"touch {folder}/x 2>&1 || true", service).strip().endswith("Read-only file system"), folder
    mounts = [line.split() for line in stack.sh("cat /proc/mounts", service).splitlines()]
    options = {target: set(words.split(",")) for _, target, _, words, *_ in mounts}
    assert "ro" in options["/"]
    assert ("ro" in options["/run/appliance"]) == (service == "sidecar")


@pytest.mark.parametrize("service", ["engine", "sidecar"])
def test_no_program_gives_another_user_id(stack: Stack, service: str) -> None:
    assert stack.sh("find / -xdev -perm /6000 -type f 2>/dev/null || true", service).split() == []


def test_the_containers_tell_what_they_are_and_hold_no_secret(stack: Stack) -> None:
    stack.wait_ready()
    for service in ("engine", "sidecar"):
        container = stack.container(service)
        assert container.attrs["HostConfig"]["Privileged"] is False
        described = json.dumps(container.attrs) + json.dumps(container.image.attrs)
        assert KEY not in described
        assert TOKEN not in described
        assert stack.host(service).file("/run/secrets/api_key").contains(KEY), "the key is there, as a file"


def test_the_sidecar_asks_the_engine_for_its_routes_with_the_key(stack: Stack) -> None:
    stack.wait_ready()
    told = until(lambda: (answer := stack.sidecar.get("/v1/sm70/acceleration").json()).get("stale") is False and answer)
    assert told["source"] == "engine"


def test_the_sidecar_sees_the_cache_and_keeps_what_the_engine_uses(stack: Stack) -> None:
    stack.wait_ready()
    key = stack.record("cache.json")["key"]
    (mine,) = [one for one in stack.sidecar.get("/v1/cache").json()["generations"] if one["key"] == key]
    assert mine["in_use"] is True
    assert stack.sidecar.delete(f"/v1/cache/{key}").status_code == 401
    refused = stack.sidecar.delete(f"/v1/cache/{key}", headers={"Authorization": f"Bearer {TOKEN}"})
    assert refused.status_code == 409, refused.text


def test_the_sidecar_restarts_under_load_and_no_request_is_lost(stack: Stack) -> None:
    stack.wait_ready()
    codes: list[int] = []
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            codes.append(stack.chat(24, ignore_eos=True).status_code)

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    until(lambda: len(codes) >= 2)
    stack.compose("restart", "sidecar")
    before = len(codes)
    until(lambda: stack.docker_health("sidecar") == "healthy")
    until(lambda: len(codes) >= before + 2)
    end.set()
    for client in clients:
        client.join()
    assert set(codes) == {200}
    assert stack.health("ready")[0] == 200


def test_a_stopped_engine_is_called_stalled_shows_its_stacks_and_is_replaced(stack: Stack) -> None:
    stack.wait_ready()
    before = stack.probe("ready")[1]["details"]["restarts"]
    core = stack.pid("core")
    stack.sh(f"kill -STOP {core}")
    until(lambda: stack.probe("live")[0] == 1, limit_s=5 * GRACE_S)
    status, report = stack.health("live")
    assert (status, report["phase"]) == (503, "stalled")
    assert f"(pid {core})" in report["reason"]
    until(lambda: re.search(rf"\b{core} \S+: state T", stack.log()), limit_s=2 * GRACE_S)
    until(lambda: "appliance/vllm_plugin/server/serve.py" in stack.log(), limit_s=2 * GRACE_S)
    # Nobody lets it go on, so after the grace the guardian starts another one.
    stack.wait_ready(before + 1)
    assert stack.pid("core") != core
    assert stack.chat(4).status_code == 200


def test_a_killed_engine_comes_back_in_the_same_container(stack: Stack) -> None:
    stack.wait_ready()
    before = stack.probe("ready")[1]["details"]["restarts"]
    started = stack.container("engine").attrs["State"]["StartedAt"]
    stack.sh(f"kill -KILL {stack.pid('core')}")
    until(lambda: stack.probe("ready")[0] == 1, limit_s=20, every_s=0.1)
    stack.wait_ready(before + 1)
    container = stack.container("engine")
    assert (container.attrs["State"]["StartedAt"], container.attrs["RestartCount"]) == (started, 0)
    assert stack.chat(4).status_code == 200
    until(lambda: stack.docker_health("engine") == "healthy")


def test_a_stop_lets_a_stream_finish_within_the_grace(stack: Stack) -> None:
    stack.wait_ready()
    pieces: list[dict[str, Any]] = []
    client = threading.Thread(target=lambda: pieces.extend(stack.stream(400, ignore_eos=True)))
    client.start()
    until(lambda: stack.record("heartbeat")["in_flight"] >= 1)
    stack.compose("stop", "engine", timeout=DRAIN_S + 120)
    client.join()
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    state = stack.container("engine").attrs["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False), "not 137: Docker had to kill nothing"
    assert "ended with status 0: stopped as asked" in stack.log()


def _unhealthy(stack: Stack, name: str) -> Any:
    return (found := stack.health(name))[0] == 503 and found


def test_a_sidecar_without_an_engine_is_healthy_and_says_so(stack: Stack) -> None:
    assert stack.container("engine").status == "exited", "the tests of this module build on each other"
    for name in ("live", "ready"):
        status, report = until(partial(_unhealthy, stack, name), limit_s=30)
        assert (status, report["phase"]) == (503, "dead")
        assert report["reason"]
    assert stack.sidecar.get("/").status_code == 200
    told = stack.sidecar.get("/v1/sm70/acceleration").json()
    assert told["stale"] is True, "the last known report, marked"
    assert stack.docker_health("sidecar") == "healthy"


def test_no_secret_is_in_a_log_or_in_the_run_directory(stack: Stack) -> None:
    said = stack.log("engine") + stack.log("sidecar")
    kept = stack.sh("cd /run/appliance && find . -type f -exec cat {} +", "sidecar")
    assert "portable_smollm2" in kept
    for secret in (KEY, TOKEN):
        assert secret not in said
        assert secret not in kept


def test_a_second_up_is_warm(stack: Stack, record_property: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert stack.container("engine").status == "exited", "the tests of this module build on each other"
    stack.compose("down")
    began = time.monotonic()
    stack.up()
    stack.wait_ready()
    took = time.monotonic() - began
    record_property("warm_up_s", round(took, 1))
    with capsys.disabled():
        print(f"\nwarm `docker compose up` to ready: {took:.1f} s")
    outcome = stack.record("cache.json")
    assert (outcome["enabled"], outcome["state"]) == (True, "warm"), outcome
    assert stack.chat(4).status_code == 200


def test_a_misspelt_variable_stops_the_start_with_one_line(stack: Stack) -> None:
    image = stack.container("engine").image.id
    done = run("docker", "run", "--rm", "-e", "APPLIANCE_PROFLIE=x", image, check=False)
    assert done.returncode == 2
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) == 1
    assert "APPLIANCE_PROFILE" in lines[0]
