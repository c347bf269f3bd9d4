"""The table of settings, and their values from text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ConfigurationError
from appliance.launch import settings

BASE = Path("/base")


def value(name: str, raw: object) -> Any:
    return settings.parse(settings.SETTINGS[name], raw, "somewhere", BASE)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="appliance plan", allow_abbrev=False)
    parser.add_argument("--json", action="store_true")
    settings.add_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("profile", "portable_smollm2", "portable_smollm2"),
        ("port", "8000", 8000),
        ("port", 8000, 8000),
        ("max_restarts", "0", 0),
        ("force", "1", True),
        ("force", True, True),
        ("force", "No", False),
        ("log_format", "json", "json"),
        ("state_dir", "data", "/base/data"),
        ("state_dir", "/data/../x", "/x"),
        ("topology", "/machines/a.json", "/machines/a.json"),
    ],
)
def test_values_of_the_right_kind(name: str, raw: object, expected: object) -> None:
    assert value(name, raw) == expected


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("port", "eight", 'port is "eight"; wanted a port from 1 to 65535'),
        ("port", "0", 'port is "0"; wanted a port from 1 to 65535'),
        ("port", "65536", 'port is "65536"; wanted a port from 1 to 65535'),
        ("port", True, 'port is "true"; wanted a port from 1 to 65535'),
        ("port", "٣", 'port is "٣"; wanted a port from 1 to 65535'),
        ("drain", "-1", 'drain is "-1"; wanted a whole number, 0 or more'),
        ("drain", 1.5, 'drain is "1.5"; wanted a whole number, 0 or more'),
        ("force", "maybe", 'force is "maybe"; wanted true or false'),
        ("log_format", "xml", 'log_format is "xml"; wanted plain or json'),
        ("profile", 3, 'profile is "3"; wanted text on one line'),
        ("profile", "a\nb", 'profile is "a\\nb"; wanted text on one line'),
        ("profile", "", 'profile is ""; wanted text on one line'),
        ("state_dir", ["a"], 'state_dir is "["a"]"; wanted a folder'),
        ("api_key", "two\nlines", "api_key; wanted text on one line"),
        ("api_key", 12345, "api_key; wanted text on one line"),
    ],
)
def test_values_of_the_wrong_kind(name: str, raw: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as said:
        value(name, raw)
    assert str(said.value) == f"somewhere: {message}"


@given(st.sampled_from(sorted(settings.SETTINGS)), st.text())
def test_any_text_is_a_value_or_one_line(name: str, text: str) -> None:
    said = ""
    try:
        value(name, text)
    except ConfigurationError as error:
        said = str(error)
    assert said.isprintable()


def test_an_unknown_setting_gets_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as said:
        settings.find("sidecar-prot", "file x.yaml")
    assert str(said.value) == (
        'file x.yaml: no setting "sidecar-prot"; did you mean "sidecar_port"? `appliance plan --settings` lists them'
    )


def test_every_setting_has_its_three_names() -> None:
    args = parsed()
    assert settings.collect(args) == {}
    for name, setting in settings.SETTINGS.items():
        assert setting.variable == f"APPLIANCE_{name.upper()}"
        words = [setting.option] if setting.kind == "boolean" else [setting.option, "x"]
        expected = "true" if setting.kind == "boolean" else "x"
        assert settings.collect(parsed(*words)) == {name: expected}


def test_a_boolean_can_be_taken_back_on_the_command_line() -> None:
    assert settings.collect(parsed("--force", "--no-offline")) == {"force": "true", "offline": "false"}


@pytest.mark.parametrize(
    "after",
    [
        [],
        ["--max-model-len", "4096"],
        ["--port", "9000", "--json", "--help", "-h"],
        ["--speculative-config", '{"model": "a b"}', "--", "-tp", "4", ""],
    ],
)
def test_what_follows_the_dashes_is_untouched(after: list[str]) -> None:
    args = parsed("--json", "--port", "8100", "--", *after)
    assert settings.passthrough(args) == after
    assert settings.collect(args) == {"port": "8100"}
    assert args.json


def test_without_dashes_nothing_goes_to_vllm() -> None:
    assert settings.passthrough(parsed("--json")) == []
    with pytest.raises(ConfigurationError) as said:
        settings.passthrough(parsed("--json", "extra", "--port", "1"))
    assert str(said.value) == '"extra" is not expected here; options for vLLM go after --'


def test_the_table_says_which_settings_are_secret() -> None:
    assert [name for name, setting in settings.SETTINGS.items() if setting.secret] == ["api_key", "sidecar_token"]
    assert all(setting.to_json()["help"] for setting in settings.SETTINGS.values())
