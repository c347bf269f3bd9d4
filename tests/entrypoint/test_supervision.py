from __future__ import annotations

import configparser
import shlex
import sys
from pathlib import Path

import pytest

from appliance.errors import ConfigurationError
from entrypoint.ender import verdict
from entrypoint.supervision import PROGRAMS, Wiring, configuration


def parsed(
    run_dir: str = "/run/appliance", *, root: bool = False, sidecar: tuple[str, int] | None = ("0.0.0.0", 8001)
) -> configparser.RawConfigParser:
    pipes = {name: number for number, name in enumerate(PROGRAMS, start=10)}
    wiring = Wiring(Path(run_dir), sidecar, 75, pipes, root)
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"))
    parser.read_string(configuration(wiring))
    return parser


def test_the_guardian_alone_owns_restarts_of_the_engine_and_gets_its_drain_time() -> None:
    engine = parsed()["program:engine"]
    assert engine["autorestart"] == "false"
    assert engine["stopwaitsecs"] == "75"
    words = shlex.split(engine["command"])
    assert words[0] == sys.executable
    assert words[-3:] == ["-P", "-m", "entrypoint.guardian"]


def test_the_sidecar_is_restarted_and_stops_after_the_engine() -> None:
    found = parsed()
    sidecar = found["program:sidecar"]
    assert sidecar["autorestart"] == "true"
    assert shlex.split(sidecar["command"])[-9:] == [
        *("sidecar", "--run-dir", "/run/appliance"),
        *("--host", "0.0.0.0", "--port", "8001"),
        *("--log-format", "plain"),
    ]
    assert int(sidecar["priority"]) < int(found["program:engine"]["priority"])


def test_a_sidecar_in_a_container_of_its_own_is_not_started_here() -> None:
    assert "program:sidecar" not in parsed(sidecar=None)
    assert "program:engine" in parsed(sidecar=None)


def test_there_is_no_server_and_no_log_file() -> None:
    found = parsed()
    assert not {"unix_http_server", "inet_http_server", "rpcinterface:supervisor"} & set(found.sections())
    for section in found.sections():
        files = {value for name, value in found[section].items() if name.endswith("logfile")}
        assert all(value == "/dev/null" or value.startswith("/dev/fd/1") for value in files)


def test_a_path_with_a_percent_sign_a_space_or_a_quote_survives() -> None:
    found = parsed("/tmp/100% it's mine")
    # supervisord expands %(name)s and %% in every value.
    command = found["program:sidecar"]["command"] % {}
    assert "/tmp/100% it's mine" in shlex.split(command)
    assert found["supervisord"]["pidfile"] % {} == "/tmp/100% it's mine/supervisord.pid"


def test_a_path_that_would_be_read_as_a_comment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot hold a path with ; or # after a space"):
        parsed("/tmp/run #2")


def test_root_is_named_so_that_supervisord_does_not_complain() -> None:
    assert parsed(root=True)["supervisord"]["user"] == "0"
    assert "user" not in parsed()["supervisord"]


@pytest.mark.parametrize(
    ("event", "program", "reason"),
    [
        ("PROCESS_STATE_EXITED", "engine", "the guardian of the engine ended without saying why"),
        (
            "PROCESS_STATE_FATAL",
            "sidecar",
            "the program sidecar could not be kept running; its last lines in the log say why",
        ),
        ("PROCESS_STATE_EXITED", "sidecar", None),
    ],
)
def test_the_end_of_the_engine_and_of_what_cannot_be_kept_up_ends_the_whole(
    event: str, program: str, reason: str | None
) -> None:
    assert verdict(event, {"processname": program, "groupname": program, "from_state": "RUNNING"}) == reason
