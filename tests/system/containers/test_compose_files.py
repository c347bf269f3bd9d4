"""The compose files as they are written: documented, hardened, private by default, in step with the profiles."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from appliance.cache import volumes
from appliance.launch import arguments, settings
from appliance.paths import PROFILES, ROOT
from entrypoint import session
from entrypoint.life import STOP_SECONDS
from tests.requirement import required

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("compose.yaml", "compose.portable.yaml", "compose.cdi.yaml")
COMBINATIONS = (FILES[:1], FILES[:2], (FILES[0], FILES[2]))
EXAMPLE = ROOT / ".env.example"

NOT_FOR_CONTAINERS = {
    "topology",  # serve starts on the machine that it is on
    "smi_xml",
    "api_key",  # by file
    "sidecar_token",
}

_USED = re.compile(r"\$\{([A-Z][A-Z0-9_]*)")
_DOCUMENTED = re.compile(r"^#([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)


class Loader(yaml.SafeLoader):
    """Reads compose's own tags as the plain values that they stand in front of."""


def _plain(loader: Loader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else None


Loader.add_multi_constructor("!", _plain)


def load(name: str) -> dict[str, Any]:
    return dict(yaml.load((ROOT / name).read_text(encoding="utf-8"), Loader))


def used(name: str) -> set[str]:
    """What compose fills in from the environment."""
    return set(_USED.findall((ROOT / name).read_text(encoding="utf-8")))


def documented() -> dict[str, str]:
    return dict(_DOCUMENTED.findall(EXAMPLE.read_text(encoding="utf-8")))


def seconds(text: str) -> int:
    """The default in `${NAME:-180s}`."""
    (number,) = re.findall(r":-(\d+)s\}", text)
    return int(number)


def budgets(name: str, *, portable: bool) -> list[int]:
    profiles = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in PROFILES.glob("*.yaml")]
    return [profile["health"][name] for profile in profiles if (profile["engine"] == "portable") == portable]


def resolved(files: tuple[str, ...], folder: Path, **variables: str) -> dict[str, Any]:
    """What compose makes of `files`, laid into `folder`, which may hold a .env."""
    for name in files:
        shutil.copy(ROOT / name, folder)
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    command = ["docker", "compose", *(word for name in files for word in ("-f", name)), "config", "--format", "json"]
    done = subprocess.run(
        command, cwd=folder, env={**inherited, **variables}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", FILES)
def test_each_variable_is_documented(name: str) -> None:
    assert used(name) <= documented().keys()


def test_each_documented_variable_does_something() -> None:
    handed_on = set(load("compose.yaml")["services"]["engine"]["environment"])
    built_with = set(load("compose.yaml")["x-build"]["args"])
    of_compose = {"COMPOSE_FILE"}
    assert documented().keys() <= handed_on.union(built_with, of_compose, *map(used, FILES))


@pytest.mark.parametrize("name", FILES)
def test_the_documented_default_is_the_one_in_the_file(name: str) -> None:
    """.env.example shows compose.yaml's own; what another file changes stands there as "(portable: ...)"."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for variable, default in re.findall(r"\$\{([A-Z][A-Z0-9_]*):-([^}]*)\}", (ROOT / name).read_text(encoding="utf-8")):
        if default == "/dev/null":
            continue
        shown = f"#{variable}={default}" if name == "compose.yaml" else f"(portable: {default})"
        assert shown in text, f"{name} has {variable}={default}"


def test_each_appliance_variable_is_a_setting() -> None:
    known = {setting.variable for setting in settings.SETTINGS.values()}
    written = {
        variable
        for name in FILES
        for service in load(name)["services"].values()
        for variable in service.get("environment", {})
    }
    ours = {
        name for name in {*written, *documented(), *(set().union(*map(used, FILES)))} if name.startswith("APPLIANCE_")
    }
    assert ours <= known


def test_the_engine_gets_every_setting() -> None:
    environment = load("compose.yaml")["services"]["engine"]["environment"]
    for setting in settings.SETTINGS.values():
        assert (setting.variable in environment) != (setting.name in NOT_FOR_CONTAINERS), setting.name


def test_no_secret_is_in_an_environment() -> None:
    secret = {setting.variable for setting in settings.SETTINGS.values() if setting.secret}
    for service in load("compose.yaml")["services"].values():
        assert not secret & service["environment"].keys()
        assert not [
            name for name in service["environment"] if re.search("KEY|TOKEN", name) and not name.endswith("_FILE")
        ]


@pytest.mark.parametrize("name", ["engine", "sidecar"])
def test_a_container_may_do_nothing_that_it_need_not(name: str) -> None:
    service = load("compose.yaml")["services"][name]
    assert service["user"].split(":")[0] != "0"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"cap_add", "privileged", "pid", "ipc", "network_mode", "devices"}
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys()


@pytest.mark.parametrize("name", ["engine", "sidecar"])
def test_ports_are_on_loopback_by_default(name: str) -> None:
    (port,) = load("compose.yaml")["services"][name]["ports"]
    assert re.match(r"\$\{[A-Z_]+:-127\.0\.0\.1\}:", port)


def test_the_sidecar_cannot_write_what_the_engine_tells() -> None:
    mounts = load("compose.yaml")["services"]["sidecar"]["volumes"]
    (run,) = (volume for volume in mounts if volume.startswith("run:"))
    assert run.endswith(":ro")


@pytest.mark.parametrize(("file", "portable"), [("compose.yaml", False), ("compose.portable.yaml", True)])
def test_docker_waits_longer_than_the_appliance_needs(file: str, *, portable: bool) -> None:
    service = load(file)["services"]["engine"]
    to_end = STOP_SECONDS + session.KILL_SECONDS + 5 + session.SLACK_SECONDS
    assert seconds(service["stop_grace_period"]) >= max(budgets("drain", portable=portable)) + to_end
    assert seconds(service["healthcheck"]["start_period"]) >= max(budgets("start", portable=portable))


def test_the_cache_is_found_by_its_label() -> None:
    assert load("compose.yaml")["volumes"]["cache"]["labels"] == {volumes.LABEL: "1"}


@pytest.mark.image
@pytest.mark.parametrize("files", COMBINATIONS, ids="+".join)
def test_compose_accepts_them(files: tuple[str, ...], tmp_path: Path) -> None:
    required("docker")
    services = resolved(files, tmp_path)["services"]
    gpus = [service.get("deploy") for service in services.values()]
    assert all(gpus) if "compose.portable.yaml" not in files else not any(gpus)


@pytest.mark.image
def test_a_variable_of_the_shell_or_of_the_file_reaches_the_engine(tmp_path: Path) -> None:
    required("docker")
    (tmp_path / ".env").write_text(
        "APPLIANCE_PORT=9000\nAPPLIANCE_DRAIN=7\nAPPLIANCE_PROFLIE=x\nAPPLIANCE_ENGINE_SEED=3\n"
    )
    engine = resolved(FILES[:1], tmp_path, APPLIANCE_PROFILE="qwen38_27b_fp8_32k")["services"]["engine"]
    environment = engine["environment"]
    assert environment["APPLIANCE_PROFILE"] == "qwen38_27b_fp8_32k"
    assert environment["APPLIANCE_DRAIN"] == "7"
    assert environment["APPLIANCE_ENGINE_SEED"] == "3"
    assert "seed" in arguments.table()
    assert environment["APPLIANCE_PROFLIE"] == "x", "the appliance, not compose, says what is misspelt"
    assert environment["APPLIANCE_PORT"] == "8000", "inside, the port stays"
    assert engine["ports"][0]["published"] == "9000"


@pytest.mark.image
def test_secrets_are_files_and_only_where_given(tmp_path: Path) -> None:
    required("docker")
    (tmp_path / "key").write_text("sk-of-a-test\n")
    without = resolved(FILES[:1], tmp_path)["services"]["engine"]["environment"]
    assert without["APPLIANCE_API_KEY_FILE"] == ""
    given = resolved(FILES[:1], tmp_path, APPLIANCE_API_KEY_FILE="./key")
    for service in given["services"].values():
        assert service["environment"]["APPLIANCE_API_KEY_FILE"] == "/run/secrets/api_key"
    assert given["secrets"]["api_key"]["file"] == str(tmp_path / "key")
    assert "sk-of-a-test" not in json.dumps(given)


def test_hugging_faces_token_is_the_engines_alone_and_a_file() -> None:
    services, secrets = load("compose.yaml")["services"], load("compose.yaml")["secrets"]
    assert services["engine"]["environment"]["APPLIANCE_HF_TOKEN_FILE"] == (
        "${APPLIANCE_HF_TOKEN_FILE:+/run/secrets/hf_token}"
    )
    assert secrets["hf_token"] == {"file": "${APPLIANCE_HF_TOKEN_FILE:-/dev/null}"}
    assert "hf_token" in services["engine"]["secrets"]
    assert "hf_token" not in services["sidecar"]["secrets"]


@pytest.mark.image
def test_a_variable_of_the_shell_is_no_variable_of_the_container(tmp_path: Path) -> None:
    required("docker")
    (tmp_path / "hub").write_text("hf_of_a_test\n")
    given = resolved(FILES[:1], tmp_path, APPLIANCE_HF_TOKEN_FILE="./hub", HF_TOKEN="hf_of_a_test")
    assert given["services"]["engine"]["environment"]["APPLIANCE_HF_TOKEN_FILE"] == "/run/secrets/hf_token"
    assert "APPLIANCE_HF_TOKEN_FILE" not in given["services"]["sidecar"]["environment"]
    assert given["secrets"]["hf_token"]["file"] == str(tmp_path / "hub")
    assert "hf_of_a_test" not in json.dumps(given)


@pytest.mark.image
def test_a_folder_takes_the_place_of_the_volume_of_models(tmp_path: Path) -> None:
    required("docker")
    there = resolved(FILES[:1], tmp_path, APPLIANCE_MODELS_DIR="./weights", MODELS_ACCESS="ro")
    (models,) = (one for one in there["services"]["engine"]["volumes"] if one["target"] == "/models")
    assert (models["type"], models["source"], models["read_only"]) == ("bind", str(tmp_path / "weights"), True)
