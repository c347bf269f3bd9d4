"""The sidecar as a process: port, signals, logs, slow peers, and answers while the files are being replaced."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from appliance import rundir
from appliance.errors import CheckError
from appliance.sidecar import logs, server
from entrypoint import relay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Put = Callable[..., None]

pytestmark = pytest.mark.usefixtures("complete_build")


COMMAND = [sys.executable, "-W", "error", "-m", "appliance.cli", "sidecar"]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    return {**kept, **changes}


@contextmanager
def sidecar(run_dir: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the real thing on a free port; yields the process and its address."""
    command = [*COMMAND, "--run-dir", str(run_dir), "--port", "0", *options]
    with subprocess.Popen(command, env=environment(**variables), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            address = re.search(r"http://\S+?:\d+", line)
            assert address, line
            yield process, address[0]
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status and the rest of the log, once the process has ended."""
    _, err = process.communicate(timeout=30)
    return process.returncode, err


def refused(*options: str, **variables: str) -> tuple[int, str]:
    """The exit status and the words of a sidecar that does not start."""
    done = subprocess.run(
        [*COMMAND, *options], env=environment(**variables), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr


def test_it_answers_and_ends_with_0_on_sigterm(run_dir: Path, put: Put) -> None:
    put()
    with sidecar(run_dir) as (process, url):
        answer = httpx.get(f"{url}/health/ready")
        assert answer.status_code == 200
        assert "server" not in answer.headers
        head = httpx.head(f"{url}/health/ready")
        assert (head.status_code, head.content) == (200, b"")
        process.terminate()
        assert ended(process) == (0, "")


def test_ctrl_c_is_no_traceback(run_dir: Path) -> None:
    with sidecar(run_dir) as (process, _):
        process.send_signal(signal.SIGINT)
        assert ended(process) == (130, "")


def test_sigterm_during_the_start_ends_it(run_dir: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from appliance.sidecar import server\n"
        "server.listen = lambda *where: os.kill(os.getpid(), signal.SIGTERM)\n"
        "from appliance.cli import main\n"
        "sys.exit(main(['sidecar', '--port', '0']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_starts_before_the_run_directory_is_there(run_dir: Path, put: Put) -> None:
    run_dir.rmdir()
    with sidecar(run_dir) as (_, url):
        answer = httpx.get(f"{url}/health/live")
        assert answer.status_code == 503
        assert answer.json()["reason"].startswith("phase.json is missing or unreadable")
        run_dir.mkdir()
        put()
        assert httpx.get(f"{url}/health/live").status_code == 200


def test_a_port_in_use_is_one_line(run_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, said = refused(APPLIANCE_SIDECAR_PORT=str(port))
    assert status == 1
    assert said == (
        f"appliance: sidecar port {port} on 127.0.0.1 is in use by another program; "
        "end that program or choose another with --port or APPLIANCE_SIDECAR_PORT\n"
    )


@pytest.mark.parametrize(
    ("options", "variables", "status", "said"),
    [
        (["--port", "abc"], {}, 2, 'sidecar_port is "abc"; wanted a port from 1 to 65535'),
        ([], {"APPLIANCE_SIDECAR_PORT": "70000"}, 2, 'environment APPLIANCE_SIDECAR_PORT: sidecar_port is "70000"'),
        ([], {"APPLIANCE_SIDECAR_PROT": "8001"}, 2, 'did you mean "APPLIANCE_SIDECAR_PORT"?'),
        (["--log-format", "xml"], {}, 2, 'log_format is "xml"; wanted plain or json'),
        (["--engine-url", "engine:8000"], {}, 2, 'command line: engine_url is "engine:8000"; wanted http://HOST:PORT'),
        ([], {"APPLIANCE_ENGINE_URL": "ftp://x"}, 2, "environment APPLIANCE_ENGINE_URL: engine_url is"),
        (["--token-file", "/nonexistent"], {}, 2, "sidecar_token_file /nonexistent: cannot be read (No such file"),
        ([], {"APPLIANCE_SIDECAR_TOKEN": "guess-me"}, 2, "the sidecar's token has 8 characters; wanted at least 16"),
        (["--host", "no host"], {}, 2, 'sidecar host "no host" is not an address or a name that resolves'),
        (["--host", "192.0.2.1"], {}, 1, "the sidecar cannot listen on 192.0.2.1 port 8001"),
    ],
)
def test_bad_settings_are_one_line(options: list[str], variables: dict[str, str], status: int, said: str) -> None:
    found, line = refused(*options, **variables)
    assert found == status
    assert said in line


def test_the_environment_gives_the_defaults(run_dir: Path, put: Put) -> None:
    put()
    variables = {
        "APPLIANCE_RUN_DIR": str(run_dir),
        "APPLIANCE_SIDECAR_HOST": "127.0.0.1",
        "APPLIANCE_LOG_FORMAT": "json",
        # What Kubernetes adds for a service called "appliance-sidecar".
        "APPLIANCE_SIDECAR_PORT": "tcp://10.0.0.7:8001",
    }
    with subprocess.Popen(
        [*COMMAND, "--port", "0"], env=environment(**variables), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = json.loads(process.stderr.readline())["message"]
            address = re.fullmatch(rf"listening on (http://127\.0\.0\.1:\d+), run directory {run_dir}", said)
            assert address
            assert httpx.get(f"{address[1]}/health/ready").status_code == 200
        finally:
            process.kill()


def test_the_state_folder_stands_in_for_the_run_directory(run_dir: Path, put: Put) -> None:
    put()
    command = [*COMMAND, "--port", "0"]
    with subprocess.Popen(
        command, env=environment(APPLIANCE_STATE_DIR=str(run_dir.parent)), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().endswith(f"run directory {run_dir}\n")
        finally:
            process.kill()


def test_probes_answer_while_the_files_are_replaced(run_dir: Path, put: Put) -> None:
    put()
    stop = threading.Event()

    def replace() -> None:
        beat = rundir.read(run_dir, rundir.HEARTBEAT)
        phase = rundir.read(run_dir, rundir.PHASE)
        assert beat
        assert phase
        while not stop.is_set():
            now = rundir.clock()
            rundir.write(run_dir, rundir.HEARTBEAT, beat | {"at": now, "step_at": now})
            rundir.write(run_dir, rundir.PHASE, phase | {"at": now})

    with sidecar(run_dir) as (process, url):
        writer = threading.Thread(target=replace)
        writer.start()
        try:
            with httpx.Client(base_url=url) as client:
                for _ in range(60):
                    for path in ("/health/ready", "/metrics", "/v1/profile"):
                        answer = client.get(path)
                        assert answer.status_code == 200, answer.text
        finally:
            stop.set()
            writer.join()
        process.terminate()
        assert ended(process)[0] == 0


def test_probes_are_not_logged_and_other_requests_are(run_dir: Path) -> None:
    with sidecar(run_dir, "--log-format", "json") as (process, url):
        for path in ("/health/live", "/metrics", "/v1/status", "/v1/version", "/%0aINFO: forged"):
            httpx.get(url + path)
        process.terminate()
        status, log = ended(process)
    assert status == 0
    lines = [json.loads(line) for line in log.splitlines()]
    requests = [line["message"].partition('"')[2] for line in lines]
    assert requests == ['GET /v1/version HTTP/1.1" 200', 'GET /%0AINFO%3A%20forged HTTP/1.1" 404']


def test_it_writes_nothing_and_needs_no_home(run_dir: Path, put: Put) -> None:
    put()
    before = sorted(run_dir.rglob("*"))
    run_dir.chmod(0o555)
    try:
        with sidecar(run_dir, HOME="/nonexistent", TMPDIR="/nonexistent") as (process, url):
            assert httpx.get(f"{url}/v1/metadata").status_code == 200
            process.terminate()
            assert ended(process)[0] == 0
    finally:
        run_dir.chmod(0o755)
    assert sorted(run_dir.rglob("*")) == before


def test_its_json_lines_have_the_form_of_the_one_stream() -> None:
    other = json.loads(relay.Formatter(as_json=True)("sidecar", "a text", level="warning"))
    record = logging.LogRecord("any", logging.WARNING, "", 0, "a %s", ("text",), None)
    own = json.loads(logs.JsonLine().format(record))
    assert own.keys() == other.keys()
    assert {**own, "time": ""} == {**other, "time": ""}


def read_to_end(peer: socket.socket) -> bytes:
    peer.settimeout(30)
    parts = []
    while part := peer.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("begun", [b"", b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_peer_that_sends_no_whole_request_is_dropped(begun: bytes, run_dir: Path) -> None:
    impatient = (
        "import sys\n"
        "from appliance.sidecar import server\n"
        "server.REQUEST_S = 0.3\n"
        "from appliance.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", impatient, "sidecar", "--run-dir", str(run_dir), "--port", "0"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = re.search(r"http://(\S+?):(\d+)", process.stderr.readline())
            assert address
            with socket.create_connection((address[1], int(address[2]))) as peer:
                peer.sendall(begun)
                assert read_to_end(peer) == b""
            assert httpx.get(address[0] + "/health/live").status_code == 503
        finally:
            process.kill()


def test_a_head_without_end_is_refused(run_dir: Path) -> None:
    with sidecar(run_dir) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * (server.HEAD_BYTES + 1))
            assert read_to_end(peer).startswith(b"HTTP/1.1 400 ")


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
def test_an_ipv6_address_is_shown_in_brackets() -> None:
    try:
        listener = server.listen("::1", 0)
    except Exception as error:  # noqa: BLE001 - a host may have IPv6 compiled in and no address
        pytest.skip(str(error))
    with listener:
        assert re.fullmatch(r"http://\[::1\]:\d+", server.url(listener))


def test_a_port_that_needs_root_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> socket.socket:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "create_server", forbidden)
    with pytest.raises(
        CheckError, match=r"port 80 on 127.0.0.1 is not permitted to user \d+; choose another with --port"
    ):
        server.listen("127.0.0.1", 80)


def test_it_holds_no_engine_and_no_library_that_it_does_not_need() -> None:
    code = (
        "import sys, appliance.commands.sidecar, appliance.sidecar.app, appliance.sidecar.server; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "vllm", "rich", "requests", "huggingface_hub", "docker", "numpy", "psutil", "pynvml"}


def test_it_asks_the_engine_and_lets_the_token_write(run_dir: Path, put: Put, tmp_path: Path) -> None:
    put()
    token = "t0ken-of-the-test-long-enough"
    (tmp_path / "token").write_text(token + "\n")
    key = "key-of-the-engine-in-the-test"
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        # It listens and never answers.
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        variables = {"APPLIANCE_API_KEY": key, "APPLIANCE_ENGINE_URL": url, "APPLIANCE_CACHE_DIR": str(tmp_path / "c")}
        with sidecar(run_dir, "--token-file", str(tmp_path / "token"), **variables) as (process, address):
            with httpx.Client(base_url=address) as client:
                told = client.get("/v1/sm70/acceleration").json()
                assert (told["source"], told["stale"]) == ("run directory", True)
                assert client.post("/v1/cache/prune", json={}).status_code == 401
                right = {"authorization": f"Bearer {token}"}
                assert client.post("/v1/cache/prune", json={}, headers=right).status_code in (200, 202)
                assert client.get("/status").status_code == 200
                everything = "".join(client.get(path).text for path in ("/", "/status", "/metrics", "/v1/cache"))
            process.terminate()
            status, log = ended(process)
    assert status == 0
    assert "refused: no token from 127.0.0.1, 1 refused since the start" in log
    assert not {key, token} & set(re.findall(r"[\w-]+", everything + log))
