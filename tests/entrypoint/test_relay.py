from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.relay import LONGEST, Formatter, Lines, Redactor, secrets_of

KEY = "s3cr3t-value"


def test_lines_are_cut_wherever_the_bytes_arrive() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntw") == ["one"]
    assert lines.feed(b"o\nthree") == ["two"]
    assert lines.end() == ["three"]
    assert lines.end() == []


def test_bytes_that_are_no_text_do_not_stop_the_log() -> None:
    assert Lines().feed(b"\xff\xfe ok \x00\n") == ["\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} ok"]


def test_of_a_redrawn_bar_the_last_state_is_kept() -> None:
    assert Lines().feed(b"\rLoading 1/3\rLoading 2/3\rLoading 3/3\n") == ["Loading 3/3"]
    assert Lines().feed(b"with windows end\r\n") == ["with windows end"]


def test_empty_lines_are_left_out() -> None:
    assert Lines().feed(b"a\n\n \n\rb\n") == ["a", "b"]


def test_nothing_that_a_client_sent_can_steer_a_terminal() -> None:
    text = b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J bell\x07 tab\there\n"
    (line,) = Lines().feed(text)
    assert "\x1b" not in line
    assert "\x07" not in line
    assert line.startswith("red ")
    assert line.endswith("bell tab\there")


def test_a_line_without_end_is_cut_and_does_not_fill_the_memory() -> None:
    lines = Lines()
    found = []
    for _ in range(100):
        found += lines.feed(b"x" * 10_000)
    assert {len(line) for line in found} == {LONGEST}
    assert sum(map(len, found + lines.end())) == 1_000_000


@given(st.integers(0, 40), st.lists(st.integers(1, 30_000), min_size=1, max_size=8))
def test_a_secret_is_hidden_wherever_a_long_line_is_cut(shift: int, pieces: list[int]) -> None:
    data = b"y" * (LONGEST - 20 + shift) + KEY.encode() + b"z" * 100_000 + KEY.encode() + b"\n"
    lines = Lines(Redactor((KEY,)))
    found, start = [], 0
    for piece in pieces:
        found += lines.feed(data[start : start + piece])
        start += piece
    found += lines.feed(data[start:])
    text = "".join(found)
    assert KEY not in text
    assert KEY[:6] not in text
    assert text.count("[hidden]") == 2


def test_secrets_are_known_by_their_names() -> None:
    environment = {
        "VLLM_API_KEY": "engine-key",
        "HF_TOKEN": "hub-token\n",
        "APPLIANCE_API_KEY": "my-own-key",
        "APPLIANCE_SIDECAR_TOKEN": "side-token",
        "APPLIANCE_API_KEY_FILE": "/run/secrets/api_key",
        "APPLIANCE_SIDECAR_TOKEN_FILE": "/run/secrets/sidecar_token",
        "APPLIANCE_PORT": "8000",
        "PATH": "/usr/bin",
        "APPLIANCE_OTHER_KEY": "abc",
    }
    assert set(secrets_of(environment)) == {"engine-key", "hub-token\n", "hub-token", "my-own-key", "side-token"}


def test_a_secret_inside_another_leaves_no_rest() -> None:
    redactor = Redactor(secrets_of({"HF_TOKEN": "abcdef", "VLLM_API_KEY": "abcdefgh"}))
    assert redactor.text("x abcdefgh y abcdef") == "x [hidden] y [hidden]"


def test_plain_lines_name_their_program_in_one_column() -> None:
    plain = Formatter(as_json=False)
    assert plain("engine", "hello") == "engine     | hello"
    assert plain("supervisor", "hello") == "supervisor | hello"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("(APIServer pid=1) WARNING 11-29 12:00:00 [x.py:1] hm", "warning"),
        ("ERROR: hm", "error"),
        ("hm", "info"),
    ],
)
def test_json_lines_carry_time_program_level_and_message(text: str, level: str) -> None:
    now = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
    record = json.loads(Formatter(as_json=True)("engine", text, at=now))
    assert record == {
        "time": "2026-11-29T12:00:00.000+00:00",
        "program": "engine",
        "level": level,
        "message": text,
    }


def test_a_level_that_is_known_is_not_guessed() -> None:
    assert json.loads(Formatter(as_json=True)("appliance", "ERROR: no", "info"))["level"] == "info"


@given(st.text())
def test_a_json_line_is_one_line_of_valid_json(text: str) -> None:
    lines = Lines().feed(text.encode("utf-8", errors="surrogatepass") + b"\n")
    for line in lines:
        formatted = Formatter(as_json=True)("engine", line)
        assert "\n" not in formatted
        assert json.loads(formatted)["message"] == line
