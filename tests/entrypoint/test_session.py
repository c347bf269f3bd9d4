"""supervisord, guardian and sidecar together, over an engine that imitates vLLM's."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from appliance.health import judge
from tests.entrypoint.entrypoint_harness import Started
from tests.waiting import LIMIT_S, free_port

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes

DATA = Path(__file__).parent / "data"
KEY = "a-very-secret-key"


class Run(Started):
    """One session, its log in a file."""

    def __init__(self, folder: Path, mode: str, output: int | None = None, **changes: Any) -> None:
        run_dir = folder / "run"
        run_dir.mkdir()
        self.port, self.sidecar_port = free_port(), free_port()
        settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "sidecar": True,
            "sidecar_host": "127.0.0.1",
            "sidecar_port": self.sidecar_port,
            "run_dir": str(run_dir),
            "cache_dir": str(folder / "cache"),
            "log_format": "plain",
            "on_engine_exit": "end",
            "max_restarts": 1,
            "api_key": "set",
            "api_key_file": None,
        }
        record = {
            "command": [sys.executable, str(DATA / "fake_engine.py"), mode, str(self.port), "small"],
            "settings": settings | changes,
            "health": {"start": 3600, "progress": 3600, "stall_grace": 3600, "drain": 4},
        }
        (folder / "plan.json").write_text(json.dumps(record))
        super().__init__(
            folder,
            run_dir,
            [sys.executable, str(DATA / "serve_fake.py"), str(folder / "plan.json")],
            {**os.environ, "APPLIANCE_API_KEY": KEY, "VLLM_API_KEY": KEY, "APPLIANCE_CACHE_DIR": "/overruled"},
            start_new_session=True,
            **({} if output is None else {"stdout": output}),
        )

    def ready(self) -> None:
        self.wait(lambda: "try it: " in self.log)

    def program(self, part: str) -> psutil.Process:
        return next(one for one in self.tree() if any(part in word for word in one.cmdline()))


def waits_in_a_write(process: psutil.Process) -> bool:
    """Whether a thread of `process` waits for the reader of a full pipe: it neither runs nor sleeps by itself."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/wchan")
    return any(task.read_text() in ("pipe_write", "anon_pipe_write", "pipe_wait_writable") for task in tasks)


def all_gone(tree: list[psutil.Process]) -> bool:
    psutil.wait_procs(tree, timeout=LIMIT_S)
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in tree)


def test_it_serves_tells_how_to_use_it_and_ends_on_sigterm_with_nothing_left(start: Callable[..., Run]) -> None:
    run = start("normal")
    run.ready()
    assert '-H "Authorization: Bearer $APPLIANCE_API_KEY"' in run.log
    run.wait(lambda: f"listening on http://127.0.0.1:{run.sidecar_port}" in run.log)
    with urllib.request.urlopen(f"http://127.0.0.1:{run.sidecar_port}/health/ready", timeout=LIMIT_S) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{run.sidecar_port}/v1/cache", timeout=LIMIT_S) as answer:
        assert json.load(answer)["folder"] == str(run.run_dir.with_name("cache"))
    for program in ("engine     | ", "sidecar    | ", "appliance  | "):
        assert program in run.log
    tree = run.tree()
    assert len(tree) >= 6
    run.process.terminate()
    assert run.finish() == 0
    assert run.log.rstrip().endswith("appliance  | ended with status 0: stopped as asked")
    assert run.phase["phase"] == "dead"
    assert all_gone(tree)


def test_a_sidecar_of_another_container_is_neither_started_nor_told_of(start: Callable[..., Run]) -> None:
    run = start("normal", sidecar=False)
    run.ready()
    assert re.search(r"^appliance  \| status: `[^`]+`$", run.log, re.MULTILINE)
    assert str(run.sidecar_port) not in run.log
    assert not [one for one in run.tree() if "appliance.cli" in one.cmdline()]
    run.process.terminate()
    assert run.finish() == 0


def test_the_log_is_json_lines_without_secrets_whatever_the_engine_prints(start: Callable[..., Run]) -> None:
    run = start("noisy", log_format="json")
    run.ready()
    run.process.terminate()
    assert run.finish() == 0
    records = [json.loads(line) for line in run.log.splitlines()]
    assert {record["program"] for record in records} >= {"appliance", "engine", "sidecar"}
    assert all(set(record) == {"time", "program", "level", "message"} for record in records)
    assert any(record["message"] == "key=[hidden] red" for record in records)
    assert sum(len(record["message"]) for record in records if set(record["message"]) == {"x"}) == 300_000
    assert KEY not in run.log
    assert all(KEY.encode() not in file.read_bytes() for file in run.run_dir.rglob("*") if file.is_file())


def test_the_end_of_the_engine_ends_the_whole_with_its_reason(start: Callable[..., Run]) -> None:
    run = start("crash")
    assert run.finish() == 1
    assert "ended with status 1: the engine ended by itself with exit status 1 in phase " in run.log
    assert "ValueError: the weights are sour" in run.log.splitlines()[-1]


def test_wrong_options_end_the_whole_with_status_two(start: Callable[..., Run]) -> None:
    run = start("exit2")
    assert run.finish() == 2
    assert "ended with status 2: the engine refused its options (exit status 2): serve.py: error: argument" in run.log


def test_a_killed_guardian_ends_the_whole_and_its_engine(start: Callable[..., Run]) -> None:
    run = start("normal", on_engine_exit="restart")
    run.ready()
    tree = run.tree()
    run.program("entrypoint.guardian").kill()
    assert run.finish() == 1
    assert "ended with status 1: the guardian of the engine ended without saying why" in run.log
    assert not judge.report(run.run_dir).live_ok
    assert all_gone(tree)


def test_a_killed_sidecar_is_started_again_and_the_engine_stays(start: Callable[..., Run]) -> None:
    run = start("normal")
    run.ready()
    engine = run.phase["pid"]
    run.wait(lambda: "listening on" in run.log)
    old = run.program("appliance.cli")
    old.kill()
    run.wait(lambda: run.log.count("listening on") == 2)
    assert run.program("appliance.cli").pid != old.pid
    assert run.phase["pid"] == engine


def test_a_sidecar_that_cannot_be_kept_up_ends_the_whole(start: Callable[..., Run]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = start("normal", sidecar_port=taken.getsockname()[1])
        assert run.finish() == 1
    assert "is in use by another program" in run.log
    assert (
        "ended with status 1: the program sidecar could not be kept running; its last lines in the log say why"
        in run.log
    )


def test_a_killed_supervisord_ends_the_whole_and_every_process(start: Callable[..., Run]) -> None:
    run = start("normal")
    run.ready()
    tree = run.tree()
    run.program("supervisor.supervisord").kill()
    assert run.finish() == 1
    assert "ended with status 1: supervisord ended with signal 9 SIGKILL" in run.log
    assert not judge.report(run.run_dir).live_ok
    assert all_gone(tree)


def test_a_killed_entrypoint_leaves_no_process_behind(start: Callable[..., Run]) -> None:
    run = start("normal")
    run.ready()
    tree = run.tree()
    run.process.kill()
    run.process.wait()
    assert all_gone(tree)


def test_the_first_ctrl_c_drains_and_the_second_kills(start: Callable[..., Run]) -> None:
    run = start("stubborn")
    run.ready()
    tree = run.tree()
    run.process.send_signal(signal.SIGINT)
    run.wait(lambda: run.phase["phase"] == "draining")
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 130
    assert "ended with status 130: killed as asked, without waiting for running requests" in run.log
    assert all_gone(tree)


def test_sigterm_before_anything_runs_ends_it_cleanly(start: Callable[..., Run]) -> None:
    run = start("hang")
    run.wait((run.run_dir / "supervisord.conf").exists)
    run.process.terminate()
    assert run.finish() == 0
    assert run.phase["phase"] == "dead"


def test_a_reader_of_the_log_who_stands_still_does_not_keep_it_from_ending(start: Callable[..., Run]) -> None:
    reader, writer = os.pipe()
    run = start("chatty", output=writer)
    os.close(writer)
    run.wait(lambda: run.phase.get("phase") == "ready")
    # The engine prints without end and nobody reads: the pipes fill, and the engine waits in a write.
    engine = psutil.Process(run.phase["pid"])
    run.wait(lambda: waits_in_a_write(engine))
    tree = run.tree()
    run.process.terminate()
    assert run.finish() == 0
    os.close(reader)
    assert all_gone(tree)


def test_a_log_whose_reader_went_away_does_not_end_the_serving(start: Callable[..., Run]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = start("normal", output=writer)
    os.close(writer)
    run.wait(lambda: run.phase.get("phase") == "ready")
    run.process.terminate()
    assert run.finish() == 0
