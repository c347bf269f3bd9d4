"""What is added to the engine's environment."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import pytest

from appliance.acceleration import platforms
from appliance.errors import ConfigurationError
from appliance.launch import environment
from appliance.launch.plan import Sourced
from appliance.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def build(
    user: Mapping[str, str] = {},
    *,
    profile: Mapping[str, str] = {},
    gpus: Sequence[int] = (),
    offline: bool = False,
    require: bool = False,
    platform: str = platforms.AUTO,
) -> tuple[dict[str, Sourced], list[str]]:
    return environment.engine_environment(
        state_dir=Sourced("/state", "default"),
        run_dir=Sourced("/run/appliance", "environment APPLIANCE_RUN_DIR"),
        offline=Sourced(offline, "default"),
        require_acceleration=Sourced(require, "command line"),
        platform=Sourced(platform, "command line"),
        profile=("p", profile),
        gpus=gpus,
        user=user,
    )


def values(user: Mapping[str, str] = {}, *, offline: bool = False, require: bool = False) -> dict[str, str]:
    built, _ = build(user, offline=offline, require=require)
    return {name: sourced.value for name, sourced in built.items()}


def test_every_folder_is_under_the_one_that_may_be_written() -> None:
    found = values({"HOME": "/", "XDG_CACHE_HOME": "/.cache"})
    for name in (
        "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "VLLM_CONFIG_ROOT", "HF_HOME", "NUMBA_CACHE_DIR",
        "MPLCONFIGDIR", "OUTLINES_CACHE_DIR",
    ):  # fmt: skip
        assert found[name].startswith("/state/home"), name
        assert found[name] == environment.folders("/state")[name]
    assert "TMPDIR" not in found


def test_compiled_code_goes_under_one_generation_and_nothing_else_does() -> None:
    assert environment.compiled("/cache/generations/k") == {
        "VLLM_CACHE_ROOT": "/cache/generations/k/vllm",
        "TRITON_CACHE_DIR": "/cache/generations/k/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/cache/generations/k/inductor",
        "CUDA_CACHE_PATH": "/cache/generations/k/cuda",
        "SM70_KERNELS_CACHE": "/cache/generations/k/sm70",
    }
    assert not environment.compiled("/k").keys() & environment.folders("/state").keys()
    found, warnings = build({"VLLM_CACHE_ROOT": "/big/vllm"})
    assert not environment.compiled("/k").keys() & found.keys(), "the key is known only once the model is there"
    assert warnings == [
        "environment VLLM_CACHE_ROOT is not used: compiled code goes under cache_dir (APPLIANCE_CACHE_DIR)"
    ]


def test_no_entry_in_the_password_database_is_needed() -> None:
    found = values({"USER": "root"})
    assert (found["USER"], found["LOGNAME"]) == ("appliance", "appliance")


def test_a_cache_folder_of_the_environment_is_not_used_and_that_is_told() -> None:
    found, warnings = build({"HF_HOME": "/big/hf", "HOME": "/home/me", "NUMBA_CACHE_DIR": "/state/home/.cache/numba"})
    assert found["HF_HOME"].value == "/state/home/.cache/huggingface"
    assert warnings == ["environment HF_HOME is not used: it goes under state_dir (APPLIANCE_STATE_DIR)"]


def test_the_gpus_are_named_by_number_in_nvmls_order() -> None:
    found, _ = build({"CUDA_VISIBLE_DEVICES": "7"}, gpus=(0, 2, 3))
    assert (found["CUDA_DEVICE_ORDER"].value, found["CUDA_VISIBLE_DEVICES"].value) == ("PCI_BUS_ID", "0,2,3")
    assert values()["CUDA_VISIBLE_DEVICES"] == ""


def test_nothing_phones_home_and_nothing_is_looked_up() -> None:
    found = values()
    for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        assert found[name] == "1"


def test_offline_cannot_be_undone_by_the_environment_but_the_default_can() -> None:
    assert values({"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"
    assert values({"HF_HUB_OFFLINE": "0"}, offline=True)["HF_HUB_OFFLINE"] == "1"


def test_the_profile_sets_variables_and_the_environment_wins() -> None:
    found, _ = build({"NCCL_DEBUG": "INFO"}, profile={"NCCL_DEBUG": "WARN", "VLLM_CPU_KVCACHE_SPACE": "1"})
    assert found["NCCL_DEBUG"] == Sourced("INFO", "environment NCCL_DEBUG")
    assert found["VLLM_CPU_KVCACHE_SPACE"] == Sourced("1", "profile p")


def test_variables_of_vllm_are_shown() -> None:
    found, warnings = build({"VLLM_DISABLE_COMPILE_CACHE": "1", "VLLM_LOGGING_LEVEL": "DEBUG"})
    assert found["VLLM_DISABLE_COMPILE_CACHE"] == Sourced("1", "environment VLLM_DISABLE_COMPILE_CACHE")
    assert found["VLLM_LOGGING_LEVEL"] == Sourced("DEBUG", "environment VLLM_LOGGING_LEVEL")
    assert warnings == []


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("VLLM_LOGING_LEVEL", 'vLLM 0.19.1 does not read it; did you mean "VLLM_LOGGING_LEVEL"?'),
        ("VLLM_SERVICE_HOST", "vLLM 0.19.1 does not read it"),
        ("VLLM_SM70_REQUIRE_ACCELERATION", 'vLLM 0.19.1 does not read it; did you mean '
         '"VLLM_SM70_REQUIRE_PROFILE_ACCELERATION"?'),
    ],
)  # fmt: skip
def test_an_unknown_variable_of_vllm_is_only_a_warning(name: str, warning: str) -> None:
    (said,) = build({name: "x"})[1]
    assert said.startswith(f"environment {name}: {warning}")


def test_our_own_variables_are_known() -> None:
    assert build({environment.REQUIRE_ACCELERATION: "1"})[1] == []
    assert values(require=True)[environment.REQUIRE_ACCELERATION] == "1"
    assert environment.REQUIRE_ACCELERATION not in values()


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "VLLM_MY_TOKEN", "VLLM_PASSWORD"])
def test_what_may_be_a_secret_is_not_repeated(name: str) -> None:
    found, warnings = build({name: "hush"})
    assert name not in found
    assert "hush" not in json.dumps([found, warnings], default=str)


def test_a_service_called_vllm_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as said:
        build({"VLLM_PORT": "tcp://10.0.0.7:8000"})
    assert str(said.value) == (
        'environment VLLM_PORT is "tcp://10.0.0.7:8000", which Kubernetes sets for a service called "vllm" and vLLM '
        "stops at; set enableServiceLinks: false in the pod, or rename the service"
    )
    assert build({"VLLM_PORT": "9000"})[0]["VLLM_PORT"].value == "9000"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "appliance,appliance_heartbeat,appliance_sm70"),
        ("mine", "mine,appliance,appliance_heartbeat,appliance_sm70"),
        ("appliance", "appliance,appliance_heartbeat,appliance_sm70"),
    ],
)
def test_the_appliances_plugins_cannot_be_left_out(given: str, expected: str) -> None:
    assert values({"VLLM_PLUGINS": given})["VLLM_PLUGINS"] == expected
    assert "VLLM_PLUGINS" not in values()


def test_those_are_the_plugins_that_are_installed() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(environment.PLUGINS) == {name for group in groups.values() for name in group}
