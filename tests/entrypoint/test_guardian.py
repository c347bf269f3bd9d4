"""The guardian as supervisord runs it, over an engine that imitates vLLM's processes and log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from appliance import rundir
from appliance.health import judge
from tests.entrypoint.entrypoint_harness import KEY, Guarded
from tests.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.processes

Run = Guarded


def test_a_start_passes_through_its_phases_and_sigterm_ends_it_without_a_rest(start: Callable[..., Run]) -> None:
    run = start("normal")
    seen: list[str] = []

    def ready() -> bool:
        name = run.phase.get("phase")
        if name and name not in seen:
            seen.append(name)
        return name == "ready"

    run.wait(ready)
    # A short phase can fall between two looks.
    assert [name for name in ("starting", "loading", "warming", "ready") if name in seen] == seen
    record = run.phase
    assert record["models"] == ["small"]
    assert record["plugins"] == {"api": True, "core": True}
    assert judge.report(run.run_dir).ready_ok

    tree = run.tree()
    assert len(tree) == 3
    run.process.terminate()
    assert run.finish() == 0
    assert run.ending["status"] == 0
    assert run.ending["reason"] == "stopped as asked"
    assert not any(one.is_running() for one in tree)


def test_the_engine_gets_the_key_and_no_file_or_line_of_the_guardian_has_it(start: Callable[..., Run]) -> None:
    run = start("normal")
    run.until("ready")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{run.port}/v1/models", timeout=LIMIT_S)
    run.process.terminate()
    run.finish()
    assert all(KEY.encode() not in file.read_bytes() for file in run.run_dir.rglob("*") if file.is_file())


def test_progress_of_a_bar_without_newlines_keeps_a_slow_start_alive_and_is_shown(start: Callable[..., Run]) -> None:
    run = start("slow", start=36_000, progress=600)
    for part in range(1, 10):
        run.load_parts(part)
        run.ahead(400)
    run.load_all()
    run.until("ready")


def test_a_start_that_stands_still_is_ended_with_its_stacks_and_not_tried_again(start: Callable[..., Run]) -> None:
    run = start("hang", progress=600)
    run.until("loading")
    run.wait(lambda: "No available shared memory broadcast block" in run.log)
    tree = run.tree()
    run.ahead(700)
    assert run.finish() == 1
    reason = run.ending["reason"]
    assert reason.startswith("phase loading stands still: no progress for ")
    assert '(the profile allows 600 s); the last was "phase loading"' in reason
    assert "\n" not in reason
    assert run.log.count("Thread 0x") + run.log.count("Current thread 0x") >= 2, "api and core dump their stacks"
    assert "fake_engine.py" in run.log
    assert "sleep: state S" in run.log, "a process that would die of the signal is told of instead"
    assert run.phase["restarts"] == 0
    assert not any(one.is_running() for one in tree)


def test_a_start_over_its_budget_is_ended_although_it_makes_progress(start: Callable[..., Run]) -> None:
    run = start("slow", start=600)
    run.until("loading")
    run.load_parts(2)
    run.ahead(700)
    assert run.finish() == 1
    assert run.ending["reason"].startswith("the start took longer than its budget of 600 s: it is in phase loading")


def test_a_crash_while_loading_is_tried_again_and_then_given_up_with_the_root_cause(start: Callable[..., Run]) -> None:
    run = start("crash", max_restarts=1)
    run.wait(lambda: run.phase.get("phase") == "dead" and "starting again" in run.phase["reason"])
    assert not judge.report(run.run_dir).live_ok
    assert run.finish() == 1
    assert run.ending["reason"] == (
        "the engine ended by itself with exit status 1 in phase loading: ValueError: the weights are sour; "
        "gave up after 2 starts without becoming ready"
    )


def test_an_engine_that_refuses_its_options_is_not_tried_again(start: Callable[..., Run]) -> None:
    run = start("exit2", max_restarts=5)
    assert run.finish() == 2
    assert run.ending["reason"] == (
        "the engine refused its options (exit status 2): serve.py: error: argument --max-model-len: invalid value"
    )
    assert run.phase["restarts"] == 0


def test_a_command_that_cannot_be_started_says_so(start: Callable[..., Run]) -> None:
    run = start("none", command=["/nonexistent/python"], on_engine_exit="end")
    assert run.finish() == 1
    assert "exit status 127" in run.ending["reason"]
    assert "/nonexistent/python: cannot be started: No such file or directory" in run.log


def test_an_engine_without_the_proof_of_its_plugin_is_not_served(start: Callable[..., Run]) -> None:
    run = start("unproven")
    assert run.finish() == 1
    assert run.ending["reason"].startswith(
        "the engine answers, but nothing proves that the appliance's plugin is loaded in: core "
    )
    assert run.phase["models"] == []


def test_an_engine_that_lists_its_model_and_gives_no_token_is_never_ready(start: Callable[..., Run]) -> None:
    run = start("mute", progress=600)
    run.wait(lambda: run.phase.get("progress") == "first tokens")
    run.ahead(700)
    assert run.finish() == 1
    assert run.ending["reason"].startswith("phase warming stands still: no progress for ")
    assert '"the engine was asked for its first tokens"' in run.ending["reason"]


def test_a_killed_api_server_is_not_ready_at_once_and_comes_back(start: Callable[..., Run]) -> None:
    run = start("normal")
    record = run.until("ready")
    old = run.tree()
    os.kill(record["pid"], signal.SIGKILL)
    run.wait(lambda: run.phase["phase"] == "dead")
    assert not judge.report(run.run_dir).ready_ok
    assert "signal 9 SIGKILL" in run.phase["reason"]
    assert "starting again in 1 s (restart 1)" in run.phase["reason"]
    assert run.until("ready")["restarts"] == 1
    assert run.phase["pid"] != record["pid"]
    assert not any(one.is_running() for one in old), "the orphans of a killed API server are killed too"


def test_a_killed_engine_core_is_noticed_while_the_api_server_still_answers(start: Callable[..., Run]) -> None:
    run = start("normal", on_engine_exit="end")
    record = run.until("ready")
    core = next(int(file.stem) for file in (run.run_dir / "plugins").iterdir() if int(file.stem) != record["pid"])
    os.kill(core, signal.SIGKILL)
    run.wait(lambda: run.phase["phase"] == "dead")
    assert run.finish() == 1
    assert run.ending["reason"] == f"the engine's core process {core} ended"


def test_becoming_ready_forgives_earlier_failures(start: Callable[..., Run]) -> None:
    run = start("flaky", max_restarts=1)
    assert run.until("ready")["restarts"] == 1
    os.kill(run.phase["pid"], signal.SIGKILL)
    run.wait(lambda: run.phase["phase"] == "ready" and run.phase["restarts"] == 2)


@pytest.mark.parametrize("choice", ["restart", "end"])
def test_a_stalled_engine_is_dumped_once_and_ended_after_twice_its_grace(
    start: Callable[..., Run], choice: str
) -> None:
    run = start("stall", stall_grace=5, on_engine_exit=choice)
    run.wait(lambda: judge.report(run.run_dir).phase == "stalled")
    if choice == "end":
        assert run.finish() == 1
        assert run.ending["reason"].startswith("the engine stalled: 1 running, 0 waiting and 1 unanswered requests")
    else:
        run.wait(lambda: "the engine stalled: 1 running" in str(run.phase.get("reason")))
        assert "starting again in 1 s (restart 1)" in run.phase["reason"]
    assert run.log.count("stalled: 1 running, 0 waiting and 1 unanswered requests, but no step for") >= 1
    assert "Thread 0x" in run.log


def test_sigterm_lets_a_running_answer_finish_and_refuses_new_ones(start: Callable[..., Run]) -> None:
    run = start("normal")
    run.until("ready")
    answers: list[bytes] = []
    client = threading.Thread(target=lambda: answers.append(run.post(4)))
    client.start()
    run.wait(lambda: run.heartbeat["in_flight"] == 1)
    run.process.terminate()
    run.until("draining")
    report = judge.report(run.run_dir)
    assert (report.live_ok, report.ready_ok) == (True, False)
    run.wait(lambda: refused(run))
    assert run.finish() == 0
    client.join()
    assert answers[0].split() == [str(number).encode() for number in range(16)]


def test_a_request_that_does_not_finish_is_cut_off_after_the_drain_time(start: Callable[..., Run]) -> None:
    run = start("normal", drain=2)
    run.until("ready")
    answers: list[bytes] = []
    client = threading.Thread(target=lambda: answers.append(run.post(60)))
    client.start()
    run.wait(lambda: run.heartbeat["in_flight"] == 1)
    run.process.terminate()
    assert run.finish() == 0
    client.join()
    assert len(answers[0].split()) < 240
    assert "1 requests did not finish within 2 s and are cut off" in run.log


def test_an_engine_that_ignores_sigterm_is_killed_within_the_bound(start: Callable[..., Run], monkeypatch: Any) -> None:
    run = start("stubborn", drain=1)
    run.until("ready")
    tree = run.tree()
    run.process.terminate()

    def ended() -> bool:
        run.ahead(20)
        return run.process.poll() is not None

    run.wait(ended)
    assert run.finish() == 0
    assert "the engine did not end within 15 s of SIGTERM and is killed" in run.log
    assert not any(one.is_running() for one in tree)


def test_sigterm_while_it_loads_does_not_wait_for_a_drain(start: Callable[..., Run]) -> None:
    run = start("hang", drain=3600)
    run.until("loading")
    run.process.terminate()
    assert run.finish() == 0


def test_a_guardian_without_a_plan_says_so_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "entrypoint.guardian"],
        env={**os.environ, "APPLIANCE_RUN_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"guardian: {tmp_path / 'plan.json'} is missing or unreadable; the guardian is started by `appliance serve`\n"
    )


def test_a_phase_that_cannot_be_written_fails_the_probes_and_not_the_engine(start: Callable[..., Run]) -> None:
    run = start("normal")
    record = run.until("ready")
    # A folder of that name cannot be replaced by a file.
    (run.run_dir / rundir.PHASE).rename(run.run_dir / "old")
    (run.run_dir / rundir.PHASE).mkdir()
    run.wait(lambda: "phase.json cannot be written, so the probes fail" in run.log)
    assert psutil.pid_exists(record["pid"])
    assert json.loads((run.run_dir / "old").read_text())["phase"] == "ready"


def test_on_a_full_run_directory_the_probes_go_on(start: Callable[..., Run]) -> None:
    words = next((words for words in (["unshare", "-m"], ["unshare", "-rm"]) if may_mount(words)), None)
    if words is None:
        pytest.skip("this machine lets nobody mount a tmpfs, not even in a namespace of its own")
    run = start("normal", tmpfs=words)
    run.until("ready")
    run.wait(lambda: run.cache["sealed"])
    # While a request runs it drains, however late a look at its phase comes.
    client = threading.Thread(target=lambda: run.post(600))
    client.start()
    run.wait(lambda: run.heartbeat["in_flight"] == 1)
    with suppress(OSError), (run.run_dir / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass
    with pytest.raises(OSError, match="No space left"):
        (run.run_dir / "more").write_bytes(b"x")
    full = rundir.clock()
    run.wait(lambda: run.phase["at"] > full + 1)
    assert judge.report(run.run_dir).live_ok
    run.process.terminate()
    run.until("draining")
    run.ahead(100)
    assert run.finish() == 0
    client.join()
    assert "cannot be written" not in run.log


def refused(run: Run) -> bool:
    """Whether the engine refuses a new request. It learns of the drain from a file that it reads now and then."""
    try:
        run.post(0)
    except urllib.error.HTTPError as error:
        return error.code == 503
    return False


def may_mount(words: list[str]) -> bool:
    command = [*words, "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
