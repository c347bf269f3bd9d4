"""The GPUs' clocks while a benchmark runs, asked through NVML once a second. Nothing is changed."""

from __future__ import annotations

import importlib
import statistics
import threading
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from appliance.bench.result import Clocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

EVERY_S = 1.0

_REASONS = {
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "application clocks",
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "thermal, by the driver",
    "HwThermalSlowdown": "thermal, by the hardware",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clocks",
}
"""NVML's nvmlClocksThrottleReason names, in words. Idle is no throttling and is left out."""


class Watch:
    """What was seen so far; `clocks` sums it up."""

    def __init__(self) -> None:
        self.sm: dict[int, list[float]] = defaultdict(list)
        self.memory: dict[int, list[float]] = defaultdict(list)
        self.temperature: dict[int, list[float]] = defaultdict(list)
        self.power: dict[int, float] = {}
        self.reasons: dict[int, set[str]] = defaultdict(set)
        self.seen: set[int] = set()

    def clocks(self) -> tuple[Clocks, ...]:
        """Median clocks, highest temperature and every throttle reason of each GPU that answered."""
        return tuple(
            Clocks(
                gpu=gpu,
                sm_mhz=statistics.median(self.sm[gpu]) if self.sm[gpu] else None,
                memory_mhz=statistics.median(self.memory[gpu]) if self.memory[gpu] else None,
                power_limit_w=self.power.get(gpu),
                temperature_c=max(self.temperature[gpu], default=None),
                throttle=tuple(sorted(self.reasons[gpu])),
            )
            for gpu in sorted(self.seen)
        )


@contextmanager
def watching(gpus: tuple[int, ...], nvml: ModuleType | None = None, every_s: float = EVERY_S) -> Iterator[Watch]:
    """Ask for `gpus` from now until the context ends; without a driver, or for no GPU, nothing is seen."""
    watch = Watch()
    library: Any = nvml or (importlib.import_module("pynvml") if gpus else None)
    started = False
    if gpus:
        with suppress(library.NVMLError):
            library.nvmlInit()
            started = True
    if not started:
        yield watch
        return
    end = threading.Event()

    def ask() -> None:
        while True:
            for gpu in gpus:
                _once(library, gpu, watch)
            if end.wait(every_s):
                return

    thread = threading.Thread(target=ask, name="appliance-clocks", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        end.set()
        thread.join(timeout=10)
        with suppress(library.NVMLError):
            library.nvmlShutdown()


def _once(nvml: Any, gpu: int, watch: Watch) -> None:  # noqa: ANN401 - the binding is not typed
    def value(question: Callable[..., Any], *more: object) -> Any:  # noqa: ANN401
        with suppress(nvml.NVMLError):
            return question(*more)
        return None

    handle = value(nvml.nvmlDeviceGetHandleByIndex, gpu)
    if handle is None:
        return
    watch.seen.add(gpu)
    for clock, into in ((nvml.NVML_CLOCK_SM, watch.sm), (nvml.NVML_CLOCK_MEM, watch.memory)):
        if (mhz := value(nvml.nvmlDeviceGetClockInfo, handle, clock)) is not None:
            into[gpu].append(float(mhz))
    if (degrees := value(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)) is not None:
        watch.temperature[gpu].append(float(degrees))
    if (milliwatts := value(nvml.nvmlDeviceGetPowerManagementLimit, handle)) is not None:
        watch.power[gpu] = milliwatts / 1000
    if (bits := value(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)) is not None:
        watch.reasons[gpu] |= {
            words
            for name, words in _REASONS.items()
            if name != "GpuIdle" and bits & getattr(nvml, f"nvmlClocksThrottleReason{name}", 0)
        }
