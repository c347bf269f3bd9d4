"""The GPUs of the plan as NVML sees them now, sampled in a thread: NVML can hang, a scrape must not."""

from __future__ import annotations

import importlib
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.rundir.plan import PlanRecord
from appliance.sidecar.background import Periodic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

EVERY_S = 5.0
STALE_S = 30.0
"""A sample that is older says nothing of the GPU now: NVML hangs."""

MOST = 16
"""GPUs of one board."""

THROTTLES = {
    0x0000000000000002: "application_clocks",
    0x0000000000000004: "power_cap",
    0x0000000000000008: "hardware_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "thermal_software",
    0x0000000000000040: "thermal_hardware",
    0x0000000000000080: "power_brake",
    0x0000000000000100: "display_clocks",
}
"""nvmlClocksThrottleReasons, without "idle": an idle GPU is not slowed down."""

LINK_ERRORS = {0: "replay", 1: "recovery", 2: "crc_flit", 3: "crc_data"}
"""nvmlNvLinkErrorCounter_t."""

LINKS = 18
"""NVML's largest number of links (NVML_NVLINK_MAX_LINKS); a V100 has six."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """A GPU of the plan: its index there, and its UUID, by which it is found in any container."""

    index: int
    uuid: str | None = None


@dataclass(frozen=True)
class Reading:
    """One GPU now; None and missing keys are what it does not tell. Bytes, °C, W, Hz; `utilization` from 0 to 1.

    `ecc` counts since the driver was loaded, `link_errors` since the links were brought up, over all links.
    """

    index: int
    name: str | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    clock_sm: float | None = None
    clock_memory: float | None = None
    utilization: float | None = None
    throttles: dict[str, bool] = field(default_factory=dict)
    ecc: dict[str, int] = field(default_factory=dict)
    links: int | None = None
    link_errors: dict[str, int] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Sample:
    """What one round gave. `at` is on time.monotonic(); `problem` says why NVML itself does not answer."""

    at: float
    readings: tuple[Reading, ...] = ()
    problem: str | None = None


class GpuWatch:
    """Samples in a thread of its own."""

    def __init__(self, run_dir: Path, nvml: ModuleType | None = None) -> None:
        self._run_dir = run_dir
        self._nvml = nvml
        self._sample: Sample | None = None
        self._begun = False
        self.thread = Periodic("ask-nvml", EVERY_S, self.sample)

    def sample(self) -> None:
        """Ask NVML once."""
        self._sample = self._ask()

    def latest(self) -> Sample:
        """Return the last sample; one without readings, saying so, where it is too old or was never taken."""
        sample, now = self._sample, time.monotonic()
        if sample is None:
            return Sample(now, problem="NVML has not answered yet")
        if now - sample.at > STALE_S:
            return Sample(sample.at, problem=f"NVML has not answered for {now - sample.at:.0f} s")
        return sample

    def _ask(self) -> Sample:
        wanted = planned(PlanRecord.read(self._run_dir))
        try:
            nvml = self._nvml = self._nvml or importlib.import_module("pynvml")
        except ImportError:
            return Sample(time.monotonic(), problem="the package nvidia-ml-py is not installed")
        try:
            if not self._begun:
                nvml.nvmlInit()
                self._begun = True
            readings = tuple(_reading(nvml, gpu) for gpu in wanted)
        except nvml.NVMLError as error:
            self._begun = False
            return Sample(time.monotonic(), problem=f"NVML does not answer: {error}")
        if readings and all(reading.problem for reading in readings):
            # A driver that was loaded anew is only seen by an NVML that is, too.
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
            self._begun = False
        return Sample(time.monotonic(), readings)


def planned(plan: PlanRecord | None) -> list[Wanted]:
    """Return the GPUs that the plan chose, none where there is no plan that says so."""
    try:
        assert plan is not None
        assert plan.machine is not None
        uuids = {gpu["index"]: gpu["uuid"] for gpu in plan.machine["gpus"]}
        return [Wanted(index, uuids.get(index)) for index in (plan.gpus or ())[:MOST]]
    except (AssertionError, LookupError, TypeError, ValueError):
        return []


def _reading(nvml: ModuleType, gpu: Wanted) -> Reading:
    """Return what one GPU tells. A question that it does not answer leaves its figure out."""
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) if gpu.uuid else nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    except nvml.NVMLError as error:
        return Reading(gpu.index, problem=str(error))

    def ask(question: str, *more: object) -> Any:  # noqa: ANN401 - NVML's answers are of many kinds
        try:
            return getattr(nvml, question)(handle, *more)
        except nvml.NVMLError:
            return None

    def scaled(value: Any, factor: float) -> float | None:  # noqa: ANN401
        return None if value is None else value * factor

    memory = ask("nvmlDeviceGetMemoryInfo")
    utilization = ask("nvmlDeviceGetUtilizationRates")
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    links, link_errors = _links(ask)
    if memory is None and ask("nvmlDeviceGetName") is None:
        return Reading(gpu.index, problem="the GPU answers no question; `dmesg | grep -i xid` may tell why")
    return Reading(
        gpu.index,
        name=ask("nvmlDeviceGetName"),
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        temperature=ask("nvmlDeviceGetTemperature", 0),
        power=scaled(ask("nvmlDeviceGetPowerUsage"), 1e-3),
        power_limit=scaled(ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        clock_sm=scaled(ask("nvmlDeviceGetClockInfo", 1), 1e6),
        clock_memory=scaled(ask("nvmlDeviceGetClockInfo", 2), 1e6),
        utilization=None if utilization is None else utilization.gpu / 100,
        throttles={} if reasons is None else {name: bool(reasons & bit) for bit, name in THROTTLES.items()},
        ecc=_present({name: ask("nvmlDeviceGetTotalEccErrors", kind, 0) for kind, name in _ECC.items()}),
        links=links,
        link_errors=link_errors,
    )


_ECC = {0: "corrected", 1: "uncorrected"}
"""nvmlMemoryErrorType_t; the counter 0 is the volatile one."""


def _links(ask: Callable[..., Any]) -> tuple[int | None, dict[str, int]]:
    """Return how many NVLinks are up and their errors; None and nothing for a GPU without NVLink."""
    states = []
    for link in range(LINKS):
        if (state := ask("nvmlDeviceGetNvLinkState", link)) is None:
            break
        states.append(state)
    if not states:
        return None, {}
    up = [link for link, state in enumerate(states) if state == 1]
    counts = {
        name: [ask("nvmlDeviceGetNvLinkErrorCounter", link, counter) for link in up]
        for counter, name in LINK_ERRORS.items()
    }
    known = {name: [count for count in each if count is not None] for name, each in counts.items()}
    return len(up), {name: sum(each) for name, each in known.items() if each}


def _present(counts: dict[str, int | None]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count is not None}
