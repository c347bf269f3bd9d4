"""The API's key and where it must not turn up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from appliance.commands.plan import to_text
from appliance.errors import ConfigurationError
from appliance.launch.keys import engine_secrets
from appliance.launch.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from launch_cases import Ask

KEY = "s3cr3t-key-of-the-test"
"""What no plan may hold."""


def keyed(source: str, folder: Path) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Return options, words after `--` and environment that give KEY by way of `source`."""
    if source == "vllm options":
        return {}, ["--seed", "1", "--api-key", KEY], {}
    if source == "command line":
        return {"api_key": KEY}, [], {}
    if source.startswith("environment"):
        return {}, [], {source.split()[1]: KEY}
    path = folder / "there"
    if source == "key file":
        path.write_text(f"{KEY}\n")
        return {"api_key_file": str(path)}, [], {}
    path.write_text(f"api_key: {KEY}\n")
    return {"config": str(path)}, [], {}


@pytest.mark.parametrize(
    "source",
    ["vllm options", "command line", "environment APPLIANCE_API_KEY", "environment VLLM_API_KEY", "key file", "config"],
)
def test_a_key_reaches_the_engine_and_no_plan(source: str, ask: Ask, tmp_path: Path) -> None:
    asked = ask("none", *keyed(source, tmp_path))
    assert engine_secrets(asked) == {"VLLM_API_KEY": KEY}
    plan = resolve(asked)
    assert plan.setting("api_key") == "set"
    assert KEY not in json.dumps(plan.to_json())
    assert KEY not in "\n".join(to_text(plan))
    assert "--api-key" not in (*plan.command, *plan.passthrough)


def test_without_a_key_there_is_none(ask: Ask) -> None:
    assert engine_secrets(ask("none")) == {}
    assert resolve(ask("none")).setting("api_key") is None


def test_the_appliances_setting_wins_over_vllms_variable(ask: Ask) -> None:
    asked = ask("none", environ={"APPLIANCE_API_KEY": "ours", "VLLM_API_KEY": "theirs"})
    assert engine_secrets(asked) == {"VLLM_API_KEY": "ours"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "holds no key on its first line"),
        (b"\nkey\n", "holds no key on its first line"),
        (b"\xff", "is not text in UTF-8"),
        (b"a\x07b\n", "the key has characters that no HTTP header can carry"),
    ],
)
def test_a_bad_key_file_is_one_line(content: bytes | None, message: str, ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as said:
        engine_secrets(ask("none", environ={"APPLIANCE_API_KEY_FILE": "key"}))
    assert str(said.value) == f"environment APPLIANCE_API_KEY_FILE: api_key_file {path}: {message}"


def test_two_keys_are_one_too_many(ask: Ask) -> None:
    with pytest.raises(ConfigurationError) as said:
        resolve(ask("none", {"api_key_file": "f"}, environ={"APPLIANCE_API_KEY": KEY}))
    assert str(said.value) == (
        "api_key (environment APPLIANCE_API_KEY) and api_key_file (command line) are both set; keep one of them"
    )
