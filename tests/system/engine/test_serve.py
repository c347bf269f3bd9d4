"""`appliance serve` with the real engine on the CPU: supervisor, engine and sidecar, from the start to the end.

The tests of the shared server build on each other and the destructive ones come last: a start takes most of a minute.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from appliance import rundir
from tests.system.engine.serve_harness import GRACE_S, KEY, TOKEN, Server, body
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the starts, as a restarted container's volume is: what was compiled once stays compiled."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def server(smollm2: Path, state_dir: Path) -> Iterator[Server]:
    started = Server(smollm2, state_dir, state_dir / "serve.log", "--on-engine-exit", "restart", "--drain", "90")
    try:
        yield started
    finally:
        started.stop()


def test_a_start_shows_its_phases_and_ends_ready_with_a_curl_that_works(server: Server) -> None:
    assert until(lambda: "starting 0 s of 300 s" in server.log)
    server.wait_ready()
    until(lambda: "try it: " in server.log)
    assert server.health("ready")[0] == 200
    assert (rundir.read(server.run_dir, rundir.PLAN) or {})["profile"] == "portable_smollm2"
    for phase in ("loading", "warming"):
        assert f"appliance  | {phase} " in server.log
    curl = server.log.split("try it: ")[1].splitlines()[0]
    assert KEY not in curl
    done = subprocess.run(
        ["bash", "-c", curl],
        env={**os.environ, "APPLIANCE_API_KEY": KEY, "no_proxy": "127.0.0.1"},
        capture_output=True,
        check=True,
    )
    assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_a_chat_is_answered_with_the_key_and_refused_without(server: Server) -> None:
    server.wait_ready()
    answer = server.chat(16)
    assert answer.status_code == 200
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert server.chat(16, model="misspelt").status_code == 404
    refused = httpx.post(f"{server.http.base_url}/v1/chat/completions", json=body(4), trust_env=False)
    assert refused.status_code == 401


def test_the_acceleration_is_told_with_the_key_and_through_the_sidecar(server: Server) -> None:
    server.wait_ready()
    path, sidecar = "/v1/sm70/acceleration", f"http://127.0.0.1:{server.sidecar_port}"
    assert httpx.get(f"{server.http.base_url}{path}", trust_env=False).status_code == 401
    told = server.http.get(path)
    assert told.status_code == 200
    through = httpx.get(f"{sidecar}{path}", trust_env=False).json()
    assert (through["source"], through["stale"]) == ("engine", False)
    assert through["routes"] == told.json()["routes"]
    cache = httpx.get(f"{sidecar}/v1/cache", trust_env=False).json()
    assert [one["in_use"] for one in cache["generations"] if one["current"]] == [True]
    assert httpx.get(f"{sidecar}/status", trust_env=False).status_code == 200


def test_the_key_is_in_no_process_but_the_one_that_asks_for_it(server: Server) -> None:
    server.wait_ready()
    assert KEY.encode() not in Path(f"/proc/{server.pid('core')}/environ").read_bytes()
    for process in server.look():
        assert KEY not in " ".join(process.cmdline())


def test_a_streamed_chat_says_the_same_as_a_whole_one(server: Server) -> None:
    server.wait_ready()
    pieces = server.stream(16)
    text = "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces)
    assert len(pieces) > 3
    assert text == server.chat(16).json()["choices"][0]["message"]["content"]


WORD = {"type": "json_schema", "json_schema": {"name": "word", "schema": {"enum": ["yes", "no"]}}}
PAIR = {"type": "array", "items": [{"type": "integer"}]}
"""A list of `items`, as in older drafts: the first library that vLLM tries refuses it."""


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"min_tokens": 1, "stop_token_ids": [10**6]}, "token id 1000000 is not in the vocabulary"),
        ({"min_tokens": 1, "stop_token_ids": [-1]}, "token id -1 is not in the vocabulary"),
        ({"allowed_token_ids": [10**6]}, "out-of-vocab"),
        ({"temperature": float("nan")}, "nan is no finite number"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "pair", "schema": PAIR}}}, "items must"),
        ({"structured_outputs": {"json": {"type": "integer", "not": {"const": 1}}}}, '"not" (at #)'),
    ],
    ids=str,
)
def test_what_the_core_would_fail_at_is_refused_and_the_engine_lives(
    server: Server, asked: dict[str, Any], text: str
) -> None:
    server.wait_ready()
    core = server.pid("core")
    # The grammar library that the core keeps is the first request's.
    answer = server.chat(4, response_format=WORD)
    assert json.loads(answer.json()["choices"][0]["message"]["content"]) in {"yes", "no"}
    content = json.dumps(server.body(4) | asked)
    refused = server.http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert text in refused.json()["error"]["message"]
    assert server.chat(4).status_code == 200
    assert server.pid("core") == core


@pytest.mark.parametrize(
    ("path", "content", "text"),
    [
        ("/v1/messages", {"max_tokens": 4, "messages": []}, ""),
        ("/v1/messages", {"max_tokens": 10**6, "messages": [{"role": "user", "content": "Hi"}]}, "max_model_len"),
        ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi " * 9000}]}, "context length"),
        *((path, [1], "must be a JSON object") for path in ("/v1/messages", "/v1/chat/completions", "/v1/completions")),
        *((path, "text", "must be a JSON object") for path in ("/tokenize", "/v1/responses", "/v1/embeddings")),
    ],
)
def test_a_clients_mistake_is_a_400_of_one_sentence(server: Server, path: str, content: Any, text: str) -> None:
    server.wait_ready()
    asked = {"model": server.served} | content if isinstance(content, dict) else content
    refused = server.http.post(path, json=asked)
    assert refused.status_code == 400, refused.text
    said = refused.json()["error"]["message"]
    assert said
    assert text in said
    assert "/vllm/" not in said


def test_idle_for_longer_than_the_grace_is_ready(server: Server) -> None:
    server.wait_ready()
    end = time.monotonic() + 2 * GRACE_S
    while time.monotonic() < end:
        report = server.report()
        assert (report.phase, report.ready_ok) == ("ready", True), report.reason
        time.sleep(0.5)


def test_an_engine_stopped_under_load_stalls_with_a_reason_and_works_again(server: Server) -> None:
    server.wait_ready()
    answers: list[httpx.Response] = []
    client = threading.Thread(target=lambda: answers.append(server.chat(200, ignore_eos=True)))
    core = server.pid("core")
    client.start()
    until(lambda: server.heartbeat["running"] == 1)
    os.kill(core, signal.SIGSTOP)
    try:
        until(lambda: server.health("live")[0] == 503, limit_s=4 * GRACE_S)
        status, report = server.health("ready")
        assert (status, report["phase"]) == (503, "stalled")
        assert f"(pid {core})" in report["reason"]
        assert re.search(r"no step for \d|has been stopped \(state T\) for \d", report["reason"])
        until(lambda: f"{core} VLLM::EngineCore: state T" in server.log, limit_s=GRACE_S / 2)
        until(lambda: "appliance/vllm_plugin/server/serve.py" in server.log, limit_s=GRACE_S / 2)
    finally:
        with suppress(ProcessLookupError):
            os.kill(core, signal.SIGCONT)
    client.join()
    assert answers[0].status_code == 200
    until(lambda: server.report().ready_ok)
    assert server.phase["restarts"] == 0


def test_a_killed_engine_is_not_ready_and_comes_back(server: Server) -> None:
    server.wait_ready()
    old = server.look()
    core = server.pid("core")
    os.kill(core, signal.SIGKILL)
    until(lambda: not server.report().ready_ok, limit_s=10)
    until(lambda: server.health("ready")[0] == 503)
    server.wait_ready(restarts=1)
    assert f"dead: the engine's core process {core} ended" in server.log or "the engine ended by itself" in server.log
    assert server.pid("core") != core
    left = [one.pid for one in old if one.is_running() and "appliance.vllm_plugin.server.serve" in one.cmdline()]
    assert left == []
    assert server.chat(8).status_code == 200


def test_sigterm_lets_a_stream_finish_refuses_new_requests_and_leaves_nothing(server: Server) -> None:
    server.wait_ready(restarts=1)
    server.look()
    pieces: list[dict[str, Any]] = []
    tokens = 600  # several beats long however fast the machine is: ignore_eos keeps it from ending early
    client = threading.Thread(target=lambda: pieces.extend(server.stream(tokens, ignore_eos=True)))
    client.start()
    until(lambda: server.heartbeat["in_flight"] >= 1)
    server.process.terminate()
    until(lambda: server.report().phase == "draining")
    assert server.health("live")[0] == 200
    assert server.health("ready")[0] == 503
    until(lambda: server.chat(1).status_code == 503, limit_s=10)
    client.join()
    assert pieces[-1]["choices"][0]["finish_reason"] in ("length", "stop")
    assert server.process.wait(timeout=60) == 0
    assert server.left() == []
    assert server.log.rstrip().endswith("ended with status 0: stopped as asked")


def test_no_secret_is_in_the_log_or_in_any_file(server: Server) -> None:
    assert server.process.poll() == 0, "the tests of this module build on each other"
    for file in (server.log_file, *(one for one in server.run_dir.rglob("*") if one.is_file())):
        content = file.read_bytes()
        assert KEY.encode() not in content, file
        assert TOKEN.encode() not in content, file


def test_a_killed_engine_ends_the_whole_where_that_is_wanted(smollm2: Path, state_dir: Path) -> None:
    server = Server(smollm2, state_dir, state_dir / "second.log", "--on-engine-exit", "end", "--log-format", "json")
    try:
        server.wait_ready()
        os.kill(server.pid("api"), signal.SIGKILL)
        assert server.process.wait(timeout=60) == 1
        last = json.loads(server.log.splitlines()[-1])
        assert last["message"] == (
            "ended with status 1: the engine ended by itself with signal 9 SIGKILL "
            "(the kernel's out-of-memory killer sends it too)"
        )
        assert (last["program"], last["level"]) == ("appliance", "error")
        assert all(json.loads(line)["program"] for line in server.log.splitlines())
        assert not server.report().live_ok
        assert server.left() == []
    finally:
        server.stop()
