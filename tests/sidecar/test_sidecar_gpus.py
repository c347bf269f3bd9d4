"""GPUs by NVML: what is told, what a card does not tell, a lost card, and an NVML that hangs."""

# ruff: noqa: N802 - the names are NVML's

from __future__ import annotations

import threading
import time
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from appliance import rundir
from appliance.bench import run_directory
from appliance.rundir.plan import PlanRecord
from appliance.sidecar import gpus, metrics_gpus
from appliance.sidecar.gpus import GpuWatch, planned

if TYPE_CHECKING:
    from pathlib import Path

UUIDS = ("GPU-a", "GPU-b")

VALUES: dict[str, Any] = {
    "nvmlDeviceGetName": "Tesla V100-SXM2-16GB",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=12 << 30, total=16 << 30),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=80, memory=10),
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x40,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetPowerUsage": 231_500,
    "nvmlDeviceGetEnforcedPowerLimit": 300_000,
}


class Nvml(ModuleType):
    """Real constants and errors. `silent` are questions that no card answers, `lost` the GPUs that are gone."""

    def __init__(self) -> None:
        super().__init__("nvml")
        self.silent: set[str] = set()
        self.lost: set[str] = set()
        self.init_error: int | None = None
        self.inits = 0
        self.links = 6
        self.hang: threading.Event | None = None

    def __getattr__(self, name: str) -> Any:
        if name in VALUES:
            return lambda handle, *_: self.say(name, handle, VALUES[name])
        return getattr(pynvml, name)

    def say(self, question: str, handle: str, value: Any) -> Any:
        if self.hang is not None:
            self.hang.wait(60)
        if handle in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if question in self.silent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def nvmlInit(self) -> None:
        self.inits += 1
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)

    def nvmlShutdown(self) -> None:
        """Nothing is held."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return str(self.say("handle", uuid, uuid))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return str(self.say("handle", UUIDS[index], UUIDS[index]))

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return int(self.say("clock", handle, {1: 1380, 2: 877}[kind]))

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        assert counter == pynvml.NVML_VOLATILE_ECC
        return int(self.say("ecc", handle, {0: 3, 1: 0}[kind]))

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        self.say("links", handle, None)
        if link >= self.links:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link != 5)

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: str, link: int, counter: int) -> int:
        assert link < 5
        return int(self.say("link errors", handle, 2 if counter == 0 else 0))


@pytest.fixture
def nvml() -> Nvml:
    return Nvml()


@pytest.fixture
def watch(nvml: Nvml, tmp_path: Path) -> GpuWatch:
    machine = {"gpus": [{"index": index, "uuid": uuid} for index, uuid in enumerate(UUIDS)]}
    rundir.write(tmp_path, rundir.PLAN, {"gpus": [0, 1], "machine": machine})
    return GpuWatch(tmp_path, nvml)


def scraped(watch: GpuWatch) -> dict[str, float]:
    class Facts(Collector):
        def collect(self) -> Any:
            return metrics_gpus.collect(watch.latest(), time.monotonic())

    registry = CollectorRegistry()
    registry.register(Facts())
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.documentation
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_card_tells_everything(watch: GpuWatch) -> None:
    watch.sample()
    found = scraped(watch)
    of_the_first = {name.replace("{0", "{"): value for name, value in found.items() if "{0" in name}
    assert {name.replace("{,", "{"): value for name, value in of_the_first.items()} == {
        "appliance_gpu_up{}": 1,
        "appliance_gpu_memory_used_bytes{}": 12 << 30,
        "appliance_gpu_memory_size_bytes{}": 16 << 30,
        "appliance_gpu_temperature_celsius{}": 61,
        "appliance_gpu_power_watts{}": 231.5,
        "appliance_gpu_power_limit_watts{}": 300,
        "appliance_gpu_sm_clock_hertz{}": 1.38e9,
        "appliance_gpu_memory_clock_hertz{}": 877e6,
        "appliance_gpu_utilization_ratio{}": 0.8,
        "appliance_gpu_nvlinks_up{}": 5,
        "appliance_gpu_ecc_errors_total{corrected}": 3,
        "appliance_gpu_ecc_errors_total{uncorrected}": 0,
        "appliance_gpu_nvlink_errors_total{replay}": 10,
        "appliance_gpu_nvlink_errors_total{recovery}": 0,
        "appliance_gpu_nvlink_errors_total{crc_flit}": 0,
        "appliance_gpu_nvlink_errors_total{crc_data}": 0,
        **{
            f"appliance_gpu_throttled{{{name}}}": float(name in ("power_cap", "thermal_hardware"))
            for name in gpus.THROTTLES.values()
        },
    }
    assert found["appliance_nvml_up"] == 1
    assert 0 <= found["appliance_gpu_sample_age_seconds"] < 60


@pytest.mark.parametrize("silent", [*VALUES, "clock", "ecc", "links", "link errors"])
def test_what_a_card_does_not_tell_is_absent(silent: str, nvml: Nvml, watch: GpuWatch) -> None:
    watch.sample()
    before = scraped(watch)
    nvml.silent = {silent}
    watch.sample()
    after = scraped(watch)
    assert after["appliance_gpu_up{0}"] == 1
    assert after.keys() <= before.keys()
    if silent != "nvmlDeviceGetName":
        assert after.keys() < before.keys()


def test_a_lost_card_is_down_and_the_others_are_told(nvml: Nvml, watch: GpuWatch) -> None:
    nvml.lost = {"GPU-b"}
    watch.sample()
    found = scraped(watch)
    assert (found["appliance_gpu_up{0}"], found["appliance_gpu_up{1}"]) == (1, 0)
    assert [name for name in found if "{1" in name] == ["appliance_gpu_up{1}"]


def test_cards_that_come_back_are_seen_by_a_new_nvml(nvml: Nvml, watch: GpuWatch) -> None:
    nvml.lost = set(UUIDS)
    watch.sample()
    nvml.lost = set()
    watch.sample()
    assert nvml.inits == 2
    assert scraped(watch)["appliance_gpu_up{1}"] == 1


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_without_nvml_one_metric_says_so(error: int, nvml: Nvml, watch: GpuWatch) -> None:
    nvml.init_error = error
    watch.sample()
    assert scraped(watch) == {"appliance_nvml_up": 0}
    assert (watch.latest().problem or "").startswith("NVML does not answer: ")
    nvml.init_error = None
    watch.sample()
    assert scraped(watch)["appliance_nvml_up"] == 1


def test_before_the_first_sample_nothing_is_known(watch: GpuWatch) -> None:
    assert scraped(watch) == {"appliance_nvml_up": 0}


def test_an_nvml_that_hangs_is_told_and_nobody_waits(
    nvml: Nvml, watch: GpuWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.sample()
    nvml.hang = threading.Event()
    thread = threading.Thread(target=watch.sample, daemon=True)
    thread.start()
    try:
        began = time.monotonic()
        assert scraped(watch)["appliance_nvml_up"] == 1
        monkeypatch.setattr(gpus, "STALE_S", -1.0)
        assert scraped(watch) == {"appliance_nvml_up": 0}
        assert time.monotonic() - began < 30
        assert "NVML has not answered for" in (watch.latest().problem or "")
    finally:
        nvml.hang.set()
        thread.join()


def test_a_card_without_nvlink_has_no_links(nvml: Nvml, watch: GpuWatch) -> None:
    nvml.links = 0
    watch.sample()
    assert not [name for name in scraped(watch) if "nvlink" in name]


def test_the_plan_names_the_gpus() -> None:
    assert [gpu.index for gpu in planned(PlanRecord.from_json(run_directory.plan()))] == [0, 1, 2, 3]


@pytest.mark.parametrize("plan", [None, {}, {"gpus": [0]}, {"gpus": "x", "machine": {"gpus": []}}, {"machine": 1}])
def test_a_plan_without_gpus_has_none(plan: dict[str, Any] | None) -> None:
    assert planned(None if plan is None else PlanRecord.from_json(plan)) == []


def test_a_recorded_machine_has_no_uuids_and_is_asked_by_index(nvml: Nvml, tmp_path: Path) -> None:
    rundir.write(tmp_path, rundir.PLAN, {"gpus": [1], "machine": {"gpus": [{"index": 1, "uuid": None}]}})
    watch = GpuWatch(tmp_path, nvml)
    watch.sample()
    assert [reading.index for reading in watch.latest().readings] == [1]
    assert scraped(watch)["appliance_gpu_up{1}"] == 1
