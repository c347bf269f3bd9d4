"""Config file < environment < command line < `--`, with the nearest name for a misspelt one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.errors import ConfigurationError
from appliance.launch.layers import Layers, is_service_link, settle
from appliance.launch.plan import Sourced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


ODD = "is not the YAML that is wanted"
LISTED = "`appliance plan --settings` lists them"


def layers(
    cwd: Path, options: Mapping[str, str] = {}, after: Sequence[str] = (), environ: Mapping[str, str] = {}
) -> Layers:
    return settle(options, after, environ, cwd)


def refusal(
    cwd: Path, options: Mapping[str, str] = {}, after: Sequence[str] = (), environ: Mapping[str, str] = {}
) -> str:
    with pytest.raises(ConfigurationError) as said:
        settle(options, after, environ, cwd)
    assert str(said.value).isprintable()
    return str(said.value)


def test_each_layer_wins_over_those_below(config: Path) -> None:
    config.write_text(
        "port: 1001\nsidecar-port: 1002\nhost: h-file\nengine:\n  max-model-len: 1\n  seed: 1\n  dtype: half\n"
    )
    found = layers(
        config.parent,
        {"config": str(config), "port": "3001"},
        ["--seed", "3"],
        {"APPLIANCE_PORT": "2001", "APPLIANCE_SIDECAR_PORT": "2002", "APPLIANCE_ENGINE_MAX_MODEL_LEN": "2"},
    )
    assert found.settings["port"] == Sourced(3001, "command line")
    assert found.settings["sidecar_port"] == Sourced(2002, "environment APPLIANCE_SIDECAR_PORT")
    assert found.settings["host"] == Sourced("h-file", f"file {config}")
    assert found.arguments["max_model_len"] == Sourced(2, "environment APPLIANCE_ENGINE_MAX_MODEL_LEN")
    assert found.arguments["seed"] == Sourced(1, f"file {config}")
    assert found.arguments["dtype"] == Sourced("half", f"file {config}")
    assert found.options.whole == {"seed": 3}


def test_switches_of_two_layers_add_up(config: Path) -> None:
    config.write_text("engine: {additional_config: {sm70: {a: 1, b: 1}, x: 1}}")
    environ = {"APPLIANCE_CONFIG": str(config), "APPLIANCE_ENGINE_ADDITIONAL_CONFIG": '{"sm70": {"b": 2}}'}
    assert layers(config.parent, environ=environ).arguments["additional_config"] == Sourced(
        {"sm70": {"a": 1, "b": 2}, "x": 1}, f"environment APPLIANCE_ENGINE_ADDITIONAL_CONFIG over file {config}"
    )


def test_the_environment_may_name_the_file(config: Path) -> None:
    config.write_text("log_format: json\n")
    found = layers(config.parent, environ={"APPLIANCE_CONFIG": "config.yaml"})
    assert found.settings["log_format"] == Sourced("json", f"file {config}")


def test_paths_in_a_file_are_seen_from_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "a.yaml").write_text("model: ../models/x\n")
    found = layers(tmp_path, {"config": "etc/a.yaml", "draft": "d"})
    assert found.settings["model"].value == str(tmp_path / "models/x")
    assert found.settings["draft"].value == str(tmp_path / "d")


@pytest.mark.parametrize("text", ["", "# nothing\n", "engine:\n", "profile:\n", "{}"])
def test_an_empty_file_sets_nothing(config: Path, text: str) -> None:
    config.write_text(text)
    found = layers(config.parent, {"config": str(config)})
    assert list(found.settings) == ["config"]
    assert found.arguments == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profil: x", f'file {{0}}: no setting "profil"; did you mean "profile"? {LISTED}'),
        ("xyzzy: x", f'file {{0}}: no setting "xyzzy"; {LISTED}'),
        ("seed: 1", "file {0}: seed is an argument of vLLM; it goes under the key `engine`"),
        ("port: many", 'file {0}: port is "many"; wanted a port from 1 to 65535'),
        ("port: [1]", 'file {0}: port is "[1]"; wanted a port from 1 to 65535'),
        ("engine: {sead: 3}", 'file {0}: vLLM 0.19.1 has no argument "sead"; did you mean "seed"?'),
        ("engine: {block_size: big}", 'file {0}: --block-size is "big"; wanted a whole number'),
        ("engine: [a]", "file {0}: engine: wanted keys with values (`key: value`), got list"),
        ("- a", "file {0}: wanted keys with values (`key: value`), got list"),
        ("3: a", 'file {0}: the key "3" is no name; put quotes around it'),
        ("config: a.yaml", "file {0}: config names this file; one file cannot name another"),
        ("run_dir: a\nrun-dir: b", "file {0}: run_dir is set twice, once with dashes and once with underscores"),
        (
            "engine: {host: a}",
            "file {0}: host is a setting of the appliance; use --host, APPLIANCE_HOST or the key host outside `engine`",
        ),
        ("port: 1\nport: 2", f'--config {{0}} line 2: {ODD} (the key "port" stands twice)'),
        (
            "engine: {seed: 1, seed: 2}",
            f'--config {{0}} line 1: {ODD} (the key "seed" stands twice)',
        ),
        (
            "a: b: c",
            f"--config {{0}} line 1: {ODD} (mapping values are not allowed in this context)",
        ),
        (
            "!!python/object:os.system x",
            f"--config {{0}} line 1: {ODD} (could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system')",
        ),
    ],
)
def test_a_bad_file_is_one_line(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    assert refusal(config.parent, {"config": str(config)}) == message.format(config)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    gone, binary = tmp_path / "gone.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert refusal(tmp_path, {"config": "gone.yaml"}) == f"--config {gone}: cannot be read (No such file or directory)"
    assert refusal(tmp_path, {"config": "."}) == f"--config {tmp_path}: cannot be read (Is a directory)"
    assert refusal(tmp_path, {"config": "binary.yaml"}) == f"--config {binary}: is not text in UTF-8"


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("APPLIANCE_PROT", "x", f'environment: no setting "APPLIANCE_PROT"; did you mean "APPLIANCE_PORT"? {LISTED}'),
        ("APPLIANCE_PROT", "", f'environment: no setting "APPLIANCE_PROT"; did you mean "APPLIANCE_PORT"? {LISTED}'),
        ("APPLIANCE_XYZZY", "x", f'environment: no setting "APPLIANCE_XYZZY"; {LISTED}'),
        (
            "APPLIANCE_ENGINE_SEAD",
            "1",
            f'environment: no setting "APPLIANCE_ENGINE_SEAD"; did you mean "APPLIANCE_ENGINE_SEED"? {LISTED}',
        ),
        (
            "APPLIANCE_SEED",
            "1",
            f'environment: no setting "APPLIANCE_SEED"; did you mean "APPLIANCE_ENGINE_SEED"? {LISTED}',
        ),
        ("APPLIANCE_PORT", "many", 'environment APPLIANCE_PORT: port is "many"; wanted a port from 1 to 65535'),
        ("APPLIANCE_ENGINE_SEED", "x", 'environment APPLIANCE_ENGINE_SEED: --seed is "x"; wanted a whole number'),
        (
            "APPLIANCE_ENGINE_PORT",
            "1",
            "environment APPLIANCE_ENGINE_PORT: port is a setting of the appliance; use --port, APPLIANCE_PORT or the "
            "key port outside `engine`",
        ),
    ],
)
def test_a_bad_variable_is_one_line(tmp_path: Path, variable: str, text: str, message: str) -> None:
    assert refusal(tmp_path, environ={variable: text}) == message


def test_an_empty_variable_sets_nothing(tmp_path: Path) -> None:
    found = layers(tmp_path, environ={"APPLIANCE_PROFILE": "", "APPLIANCE_ENGINE_SEED": ""})
    assert (found.settings, found.arguments) == ({}, {})


def test_a_bad_option_is_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"port": "x"}) == 'command line: port is "x"; wanted a port from 1 to 65535'
    assert refusal(tmp_path, after=["--sed", "1"]) == (
        'vllm options: vLLM 0.19.1 has no option "--sed"; did you mean "--seed"?'
    )


SERVICES = {
    "APPLIANCE_SERVICE_HOST": "10.0.0.7",
    "APPLIANCE_SERVICE_PORT": "8000",
    "APPLIANCE_SERVICE_PORT_HTTP": "8000",
    "APPLIANCE_PORT": "tcp://10.0.0.7:8000",
    "APPLIANCE_PORT_8000_TCP": "tcp://10.0.0.7:8000",
    "APPLIANCE_PORT_8000_TCP_ADDR": "10.0.0.7",
    "APPLIANCE_PORT_8000_TCP_PORT": "8000",
    "APPLIANCE_PORT_8000_TCP_PROTO": "tcp",
    "APPLIANCE_PORT_53_UDP": "udp://10.0.0.7:53",
    "APPLIANCE_SIDECAR_SERVICE_HOST": "10.0.0.8",
    "APPLIANCE_SIDECAR_SERVICE_PORT_HEALTH": "8001",
    "APPLIANCE_SIDECAR_PORT": "tcp://10.0.0.8:8001",
    "APPLIANCE_SIDECAR_PORT_8001_TCP": "tcp://10.0.0.8:8001",
    "APPLIANCE_ENGINE_SERVICE_HOST": "10.0.0.9",
    "APPLIANCE_ENGINE_PORT": "tcp://10.0.0.9:8000",
    "APPLIANCE_ENGINE_PORT_8000_TCP": "tcp://10.0.0.9:8000",
}


def test_service_links_of_kubernetes_set_nothing(tmp_path: Path) -> None:
    found = layers(tmp_path, environ=SERVICES)
    assert (found.settings, found.arguments, found.warnings) == ({}, {}, ())


@pytest.mark.parametrize(
    ("name", "value"),
    [("APPLIANCE_PORT", "8000"), ("APPLIANCE_HOST", "tcp"), ("APPLIANCE_SERVED_MODEL_NAME", "a")],
)
def test_what_a_person_sets_is_no_service_link(name: str, value: str) -> None:
    assert not is_service_link(name, value)


def test_settings_after_the_dashes_win(tmp_path: Path) -> None:
    found = layers(
        tmp_path,
        {"port": "1", "host": "a", "model": "x", "served_model_name": "m"},
        ["--port=2", "--host", "b", "--model", "y", "--served-model-name", "n", "o", "--seed", "1"],
    )
    assert {name: item.value for name, item in found.settings.items()} == {
        "port": 2, "host": "b", "model": str(tmp_path / "y"), "served_model_name": "n",
    }  # fmt: skip
    assert {item.source for item in found.settings.values()} == {"vllm options"}
    assert found.options.whole == {"served_model_name": ["n", "o"], "seed": 1}
    assert found.options.tokens == {"seed": ("--seed", "1")}


def test_a_key_after_the_dashes_leaves_no_trace_in_the_words(tmp_path: Path) -> None:
    after = ["--api-key", "first", "--seed", "1", "--api_key=second"]
    found = layers(tmp_path, after=after)
    assert found.settings["api_key"] == Sourced("second", "vllm options")
    assert found.passthrough == ("--seed", "1")
    assert "api_key" not in found.options.whole
    assert "api_key" not in found.options.tokens
    assert "--api-key is seen by every user of this machine in `ps`; use --api-key-file" in found.warnings
    assert refusal(tmp_path, after=["--api-key", "a", "b"]) == (
        "vllm options: --api-key has 2 keys; the appliance takes one"
    )


def test_an_option_twice_is_told(tmp_path: Path) -> None:
    assert layers(tmp_path, after=["-tp", "2", "-tp", "4"]).warnings == (
        "tensor_parallel_size is given more than once after --; the last one counts",
    )
