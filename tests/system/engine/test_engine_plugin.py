"""What lives inside vLLM's processes, shown on the real engine: heartbeat, stalls, step record, draining, proof."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import appliance
from appliance import rundir
from appliance.rundir import plugin_proof
from appliance.vllm_plugin import stack_dump
from appliance.vllm_plugin.register import source_hash
from appliance.vllm_plugin.server import serve
from appliance.vllm_plugin.server.in_flight import INFERENCE
from tests.system.engine.engine_harness import GRACE_S, Engine, body, environment
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.health.judge import Report

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STORY = "Once upon a time there was a lighthouse keeper who"


@pytest.fixture(autouse=True)
def at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test of the shared engine begins and ends with one that is ready and idle."""
    if "engine" not in request.fixturenames:
        yield
        return
    engine: Engine = request.getfixturevalue("engine")
    engine.settle()
    yield
    engine.guardian.enter("ready")
    until(lambda: engine.report().phase == "ready", limit_s=120)
    engine.settle()


def watched(engine: Engine, seconds: float) -> list[str]:
    """The phases that the health reports went through during `seconds`."""
    seen: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        phase = engine.report().phase
        if seen[-1:] != [phase]:
            seen.append(phase)
        time.sleep(0.1)
    return seen


def until_stalled(engine: Engine, reason: str) -> Report:
    """Wait for a stall that is explained so; of two explanations the first to pass its grace is told."""

    def told() -> Report | None:
        report = engine.report()
        return report if report.phase == "stalled" and reason in report.reason else None

    found: Report = until(told, limit_s=GRACE_S + 30)
    return found


def raw(request: dict[str, Any], *headers: str) -> bytes:
    """A completion's request as it goes over the wire, for clients that misbehave."""
    content = json.dumps(request)
    head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(content)}", "", content]).encode()


def test_the_plugin_is_proven_in_api_and_core(engine: Engine) -> None:
    left = {proof.role: proof for proof in plugin_proof.read_all(engine.run_dir)}
    assert left.keys() >= {"api", "core"}
    for proof in left.values():
        assert proof.appliance == appliance.__version__
        assert str(proof.vllm).startswith("0.19.1")
        assert proof.source == source_hash()
    assert left["api"].pid == engine.process.pid
    assert engine.report().ready_ok, engine.report().reason


def test_the_routes_are_reported_as_not_applicable(engine: Engine) -> None:
    report = rundir.read(engine.run_dir, rundir.ACCELERATION)
    assert report is not None
    assert report["profile"] == "portable_smollm2"
    assert {route["state"] for route in report["routes"].values()} == {"not_applicable"}


def test_every_path_that_takes_a_post_is_classified(engine: Engine) -> None:
    """A new kind of inference in vLLM must not pass uncounted."""
    paths = engine.http.get("/openapi.json").json()["paths"]
    posts = {path for path, methods in paths.items() if "post" in methods}
    others = {"/tokenize", "/detokenize", "/ping", "/scale_elastic_ep", "/is_scaling_elastic_ep"}
    others |= {path for path in posts if path.endswith(("/render", "/cancel", "/count_tokens"))}
    assert posts - others <= INFERENCE
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses"} <= posts


def test_the_heartbeat_advances_under_load(engine: Engine) -> None:
    before = engine.heartbeat()
    with engine.streaming(STORY, 120) as pieces:
        next(pieces)
        working = until(lambda: (beat := engine.heartbeat())["running"] == 1 and beat)
        assert working["step"] > before["step"]
        assert working["step_at"] > (before["step_at"] or 0)
        assert (working["in_flight"], working["awaiting"]) == (1, 0)
        assert working["busy_since"] is not None
        assert 0 < working["kv_usage"] < 1
        assert working["steps_record"] == "on"
        report = engine.report()
        assert (report.phase, report.details["state"]) == ("ready", "working")
        later = until(lambda: (beat := engine.heartbeat())["at"] > working["at"] and beat)
        assert later["step"] > working["step"]
        for _ in pieces:
            pass
    engine.settle()
    after = engine.heartbeat()
    assert after["finished"] - before["finished"] == 1
    assert after["generation_tokens"] - before["generation_tokens"] == 120
    assert (after["running"], after["in_flight"], after["awaiting"]) == (0, 0, 0)


def test_idle_for_longer_than_the_grace_is_not_stalled(engine: Engine) -> None:
    engine.complete(STORY, 2)
    assert watched(engine, 2 * GRACE_S) == ["ready"]
    report = engine.report()
    assert report.details["step_age_s"] > GRACE_S
    assert report.reason.startswith("idle, last step ")


def test_saturated_for_longer_than_the_grace_is_not_stalled(engine: Engine) -> None:
    with ExitStack() as all_of_them:
        streams = [all_of_them.enter_context(engine.streaming(f"{n}. {STORY}", 1500)) for n in range(2)]
        for pieces in streams:
            next(pieces)
        queued = [threading.Thread(target=engine.complete, args=(f"{n}. {STORY}", 1)) for n in range(2, 5)]
        for thread in queued:
            thread.start()
        until(lambda: engine.heartbeat()["waiting"] == 3)
        assert watched(engine, 2 * GRACE_S) == ["ready"]
        report = engine.report()
        assert (report.details["state"], report.details["running"], report.details["waiting"]) == ("saturated", 2, 3)
    for thread in queued:
        thread.join()


@pytest.mark.parametrize("after", [0, 5], ids=["before the first token", "in the middle"])
def test_a_client_that_goes_away_leaves_nothing_running(engine: Engine, after: int) -> None:
    request = raw(body("word " * 600, 1000, stream=True))
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.sendall(request)
        received = b""
        while received.count(b"data: {") < after:
            received += client.recv(4096)
        until(lambda: engine.heartbeat()["running"] == 1)
    until(lambda: engine.heartbeat()["in_flight"] == 0)
    until(lambda: engine.heartbeat()["running"] == 0, limit_s=10)
    assert watched(engine, 1.5 * GRACE_S) == ["ready"]
    assert engine.report().details["state"] == "idle"


def test_a_slow_reader_of_a_finished_answer_is_not_a_stall(engine: Engine) -> None:
    # vLLM puts the caller's id into every piece, and so the answer is more than the sockets hold.
    request = raw(body(STORY, 120, stream=True), f"X-Request-Id: {'long' * 12_000}")
    before = engine.heartbeat()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", engine.port))
        client.sendall(request)
        until(lambda: engine.heartbeat()["finished"] > before["finished"])
        assert watched(engine, 1.5 * GRACE_S) == ["ready"]
        beat = engine.heartbeat()
        assert (beat["in_flight"], beat["running"], beat["busy_since"]) == (1, 0, None)


def test_a_slow_upload_is_not_a_stall(engine: Engine) -> None:
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.sendall(raw(body(STORY, 5))[:-10])
        until(lambda: engine.heartbeat()["in_flight"] == 1)
        assert watched(engine, 1.5 * GRACE_S) == ["ready"]
        assert engine.heartbeat()["awaiting"] == 0


def test_a_stopped_engine_core_under_load_stalls_and_recovers(engine: Engine) -> None:
    with engine.streaming(STORY, 80, stream_options={"include_usage": True}) as pieces:
        next(pieces)
        core = engine.pid("core")
        with engine.held("core"):
            held = until(lambda: (report := engine.report()).phase != "ready" and report)
            assert (held.phase, held.live_ok, held.ready_ok) == ("degraded", True, False)
            assert f"(pid {core}) is stopped (state T)" in held.reason
            stalled = until_stalled(engine, "1 running, 0 waiting and 0 unanswered requests, but no step for ")
            assert (stalled.live_ok, stalled.ready_ok) == (False, False)
            assert f"(pid {core})" in stalled.reason
        assert list(pieces)[-1]["usage"]["completion_tokens"] == 80
    assert until(lambda: engine.report().ready_ok)


def test_a_request_that_a_stopped_core_never_takes_stalls(engine: Engine) -> None:
    answered: list[dict[str, Any]] = []
    with engine.held("core"):
        asking = threading.Thread(target=lambda: answered.append(engine.complete(STORY, 3)))
        asking.start()
        until_stalled(engine, "0 running, 0 waiting and 1 unanswered requests, but no step for ")
    asking.join()
    assert answered[0]["usage"]["completion_tokens"] == 3


def test_a_stopped_api_process_under_load_stalls_and_recovers(engine: Engine) -> None:
    with engine.streaming(STORY, 80, stream_options={"include_usage": True}) as pieces:
        next(pieces)
        with engine.held("api"):
            stalled = until_stalled(engine, "the engine's event loop has not answered for ")
            assert f"(pid {engine.process.pid})" in stalled.reason
        assert list(pieces)[-1]["usage"]["completion_tokens"] == 80
    assert until(lambda: engine.report().ready_ok)


def test_a_stopped_core_is_noticed_while_idle(engine: Engine) -> None:
    with engine.held("core"):
        until_stalled(engine, "has been stopped (state T) for ")


def test_streaming_comes_in_pieces_and_says_the_same(engine: Engine) -> None:
    whole = engine.complete(STORY, 40)["choices"][0]["text"]
    with engine.streaming(STORY, 40) as pieces:
        texts = [piece["choices"][0]["text"] for piece in pieces]
    assert "".join(texts) == whole
    # vLLM puts what gathers while its API process is late into one piece.
    assert len(texts) > 10


def totals(steps: list[dict[str, Any]]) -> dict[str, int]:
    names = ("prefill_tokens", "decode_tokens", "generated_tokens")
    return {name: sum(step[name] for step in steps) for name in names}


def test_the_step_record_adds_up_to_the_real_tokens(engine: Engine) -> None:
    before = len(engine.steps())
    usages: list[dict[str, Any]] = []

    def ask(prompt: str, tokens: int) -> None:
        usages.append(engine.complete(prompt, tokens)["usage"])

    # Chunks of 128 tokens that mix with the decodes of the other request, and a third that waits for its turn.
    prompts = [("alpha " * 700, 25), ("beta gamma " * 130, 40), ("delta " * 30, 12)]
    asking = [threading.Thread(target=ask, args=one) for one in prompts]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    engine.settle()
    steps = engine.steps()[before:]
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    completion_tokens = sum(usage["completion_tokens"] for usage in usages)
    cached = sum((usage["prompt_tokens_details"] or {}).get("cached_tokens", 0) for usage in usages)
    assert totals(steps) == {
        "prefill_tokens": prompt_tokens - cached,
        # The first token of each answer comes out of the last prefill chunk.
        "decode_tokens": completion_tokens - len(prompts),
        "generated_tokens": completion_tokens,
    }
    assert max(step["prefill_tokens"] + step["decode_tokens"] for step in steps) <= 128
    assert any(step["prefill_tokens"] and step["decode_tokens"] for step in steps), "no step was mixed"
    assert max(step["requests"] for step in steps) == 2
    assert all(earlier["t"] < later["t"] for earlier, later in itertools.pairwise(steps))
    assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[0]["step"] + len(steps)))


def test_a_full_batch_without_prefill_tells_the_decode_step_time(engine: Engine) -> None:
    before = len(engine.steps())
    asking = [threading.Thread(target=engine.complete, args=(f"{n}. {STORY}", 60)) for n in range(2)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    engine.settle()
    steps = engine.steps()[before:]
    full = [
        later["t"] - earlier["t"]
        for earlier, later in itertools.pairwise(steps)
        if all((one["requests"], one["prefill_tokens"], one["decode_tokens"]) == (2, 0, 2) for one in (earlier, later))
    ]
    assert len(full) >= 40
    assert all(interval > 0 for interval in full)


def test_draining_refuses_new_requests_while_a_stream_finishes(engine: Engine) -> None:
    with engine.streaming(STORY, 200) as pieces:
        next(pieces)
        engine.guardian.enter("draining")
        refused = until(lambda: (answer := engine.http.post("/v1/completions", json=body("x", 1))).is_error and answer)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "draining"
        report = engine.report()
        assert (report.phase, report.live_ok, report.ready_ok) == ("draining", True, False)
        assert engine.http.get("/v1/models").status_code == 200
        rest = list(pieces)
        assert rest[-1]["choices"][0]["finish_reason"] == "length"
    engine.guardian.enter("ready")
    until(lambda: engine.http.post("/v1/completions", json=body("x", 1)).status_code == 200)


def _logged(engine: Engine, mark: str, after: int) -> bool:
    return mark in engine.log.read_text()[after:]


def test_the_stacks_of_both_processes_can_be_had(engine: Engine) -> None:
    marks = {"api": "in _serve", "core": "in run_busy_loop"}
    for role, mark in marks.items():
        seen = len(engine.log.read_text())
        pid = engine.pid(role)
        os.kill(pid, stack_dump.SIGNAL)
        until(partial(_logged, engine, mark, seen))
        assert "Current thread" in engine.log.read_text()[seen:]
    assert engine.complete(STORY, 2)["usage"]["completion_tokens"] == 2


def test_a_run_directory_that_goes_away_stops_no_request(engine: Engine) -> None:
    away = engine.run_dir.with_name("away")
    engine.run_dir.rename(away)
    try:
        assert engine.complete(STORY, 5)["usage"]["completion_tokens"] == 5
        time.sleep(2.5)
    finally:
        away.rename(engine.run_dir)
    until(lambda: engine.heartbeat()["missed_beats"] > 0)
    assert engine.complete(STORY, 5)["usage"]["completion_tokens"] == 5
    assert engine.log.read_text().count("The heartbeat cannot be written, serving goes on") == 1


def test_without_our_plugins_nothing_is_proven(smollm2: Path, tmp_path: Path) -> None:
    engine = Engine(smollm2, tmp_path, VLLM_PLUGINS="some_other_plugin")
    try:
        engine.wait()
        assert engine.complete(STORY, 3)["usage"]["completion_tokens"] == 3
        assert plugin_proof.read_all(engine.run_dir) == []
        until(lambda: engine.heartbeat()["busy_since"] is None)
        report = engine.report()
        assert (report.phase, report.live_ok, report.ready_ok) == ("degraded", True, False)
        assert report.reason == "nothing proves the appliance's plugin loaded in: api, core"
        assert engine.heartbeat()["steps_record"] == "off: the stat logger is not loaded"
    finally:
        engine.stop()


def test_sigterm_ends_a_start_at_once(smollm2: Path, tmp_path: Path) -> None:
    """vLLM alone loses a SIGTERM that comes while it waits for its engine core, and waits on for ten minutes."""
    engine = Engine(smollm2, tmp_path)
    try:
        until(lambda: plugin_proof.read_all(engine.run_dir), limit_s=200)
        until(lambda: len(engine.tree()) > 2, limit_s=60)
        tree = engine.tree()
        engine.process.terminate()
        assert engine.process.wait(timeout=60) == 143
        assert psutil.wait_procs(tree, timeout=20)[1] == []
        assert "Traceback" not in engine.log.read_text()
    finally:
        engine.stop()


def test_a_configuration_that_vllm_refuses_ends_in_one_line_and_exit_2(smollm2: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", serve.PROGRAM, "--model", str(smollm2), "--max-model-len", "999999"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(tmp_path, APPLIANCE_RUN_DIR=str(tmp_path / "run")),
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert f"{serve.PROGRAM}: error: User-specified max_model_len (999999) is greater than the derived " in last
