"""The API's key and where it must not turn up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from appliance.commands.plan import to_text
from appliance.errors import ConfigurationError
from appliance.launch.generation import describe
from appliance.launch.keys import engine_secrets, hub_secrets, sidecar_secrets, sidecar_token
from appliance.launch.resolve import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from tests.launch.launch_cases import Ask

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
    assert KEY not in "\n".join(to_text(plan, describe(plan, asked.environ)))
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


TOKEN = "t0ken-of-the-test-long-enough"


@pytest.mark.parametrize("source", ["command line", "environment", "file", "config"])
def test_the_sidecars_token_is_in_no_plan(source: str, ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text(f"sidecar_token: {TOKEN}\n" if source == "config" else f"{TOKEN}\n")
    options = {
        "command line": {"sidecar_token": TOKEN},
        "file": {"sidecar_token_file": str(path)},
        "config": {"config": str(path)},
    }.get(source, {})
    environ = {"environment": {"APPLIANCE_SIDECAR_TOKEN": TOKEN}, "config": {"APPLIANCE_CONFIG": str(path)}}
    asked = ask("none", options, [], environ.get(source, {}))
    found = sidecar_token(asked.settle().settings)
    assert found
    assert found.value == TOKEN
    # What the entrypoint hands on is found once, whatever layer it came from.
    handed = {**asked.environ, **sidecar_secrets(asked)}
    again = sidecar_token(ask("none", environ=handed).settle().settings)
    assert again
    assert (again.value, again.source) == (TOKEN, "environment APPLIANCE_SIDECAR_TOKEN")
    plan = resolve(asked)
    assert plan.setting("sidecar_token") == "set"
    assert TOKEN not in json.dumps(plan.to_json())
    assert TOKEN not in "\n".join(to_text(plan, describe(plan, asked.environ)))


def test_without_a_token_there_is_none(ask: Ask) -> None:
    assert sidecar_token(ask("none").settle().settings) is None
    assert sidecar_secrets(ask("none")) == {}
    assert resolve(ask("none")).setting("sidecar_token") is None


def test_a_token_that_can_be_guessed_is_refused_without_being_shown(ask: Ask) -> None:
    with pytest.raises(ConfigurationError) as said:
        resolve(ask("none", environ={"APPLIANCE_SIDECAR_TOKEN": "hunter2"}))
    assert str(said.value) == (
        "environment APPLIANCE_SIDECAR_TOKEN: the sidecar's token has 7 characters; wanted at least 16 "
        "(`openssl rand -hex 32` makes one)"
    )


def test_two_tokens_are_one_too_many(ask: Ask) -> None:
    with pytest.raises(ConfigurationError, match="are both set; keep one of them"):
        resolve(ask("none", {"sidecar_token_file": "f"}, environ={"APPLIANCE_SIDECAR_TOKEN": TOKEN}))


def test_the_engines_address_is_a_setting_and_no_argument_of_vllm(ask: Ask) -> None:
    plan = resolve(ask("none", environ={"APPLIANCE_ENGINE_URL": "http://engine:8000"}))
    assert plan.setting("engine_url") == "http://engine:8000"


HUB_TOKEN = "hf_of_the_test"


@pytest.mark.parametrize("source", ["HF_TOKEN", "option", "variable", "file over HF_TOKEN"])
def test_hugging_faces_token_is_in_no_plan(source: str, ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "hub"
    path.write_text(f"{HUB_TOKEN}\n")
    options = {"hf_token_file": str(path)} if source == "option" else {}
    environ = {} if source in ("option", "HF_TOKEN") else {"APPLIANCE_HF_TOKEN_FILE": str(path)}
    if source in ("HF_TOKEN", "file over HF_TOKEN"):
        environ["HF_TOKEN"] = HUB_TOKEN if source == "HF_TOKEN" else "hf_of_another"
    asked = ask("none", options, environ=environ)
    assert hub_secrets(asked) == {"HF_TOKEN": HUB_TOKEN}
    plan = resolve(asked)
    shown = json.dumps(plan.to_json()) + "\n".join(to_text(plan, describe(plan, asked.environ)))
    assert HUB_TOKEN not in shown
    assert "hf_of_another" not in shown


def test_without_hugging_faces_token_there_is_none(ask: Ask) -> None:
    assert hub_secrets(ask("none", environ={"HF_TOKEN": " ", "APPLIANCE_HF_TOKEN_FILE": ""})) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read (No such file or directory)"), ("\n", "holds no token on its first line")],
)
def test_a_bad_file_of_the_hubs_token_stops_the_plan(
    content: str | None, message: str, ask: Ask, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "hub").write_text(content)
    with pytest.raises(ConfigurationError) as said:
        resolve(ask("none", environ={"APPLIANCE_HF_TOKEN_FILE": "hub"}))
    assert str(said.value) == f"environment APPLIANCE_HF_TOKEN_FILE: hf_token_file {tmp_path / 'hub'}: {message}"
