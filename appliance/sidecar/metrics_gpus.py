"""The GPUs of the plan as Prometheus metrics. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from appliance.sidecar.gpus import Reading, Sample

FIGURES = {
    "memory_used": ("appliance_gpu_memory_used_bytes", "Memory in use on a GPU of the plan."),
    "memory_total": ("appliance_gpu_memory_size_bytes", "Memory of a GPU of the plan."),
    "temperature": ("appliance_gpu_temperature_celsius", "Temperature of the GPU's die."),
    "power": ("appliance_gpu_power_watts", "Power that the board draws."),
    "power_limit": ("appliance_gpu_power_limit_watts", "Power that the driver lets the board draw."),
    "clock_sm": ("appliance_gpu_sm_clock_hertz", "Clock of the multiprocessors."),
    "clock_memory": ("appliance_gpu_memory_clock_hertz", "Clock of the memory."),
    "utilization": ("appliance_gpu_utilization_ratio", "Share of the last sampling period with a kernel running."),
    "links": ("appliance_gpu_nvlinks_up", "NVLinks of the GPU that are up."),
}
"""Name and help of the metric by the reading's field."""


def collect(sample: Sample, now: float) -> Iterator[Metric]:
    """Yield what the sample tells; without NVML only that it does not answer. `now` is on time.monotonic()."""
    yield GaugeMetricFamily(
        "appliance_nvml_up",
        "1 when NVML answers; else every metric of the GPUs is absent (GET /status tells why).",
        sample.problem is None,
    )
    if sample.problem is not None:
        return
    yield GaugeMetricFamily("appliance_gpu_sample_age_seconds", "Seconds since NVML was asked.", now - sample.at)
    up = GaugeMetricFamily("appliance_gpu_up", "1 when a GPU of the plan answers.", labels=["gpu"])
    for reading in sample.readings:
        up.add_metric([str(reading.index)], reading.problem is None)
    yield up
    answering = [reading for reading in sample.readings if reading.problem is None]
    for field, (name, text) in FIGURES.items():
        metric = GaugeMetricFamily(name, text, labels=["gpu"])
        for reading in answering:
            if (value := getattr(reading, field)) is not None:
                metric.add_metric([str(reading.index)], value)
        if metric.samples:
            yield metric
    yield from _labelled(answering)


def _labelled(readings: list[Reading]) -> Iterator[Metric]:
    slowed = GaugeMetricFamily(
        "appliance_gpu_throttled", "1 for each reason that holds the clocks down now.", labels=["gpu", "reason"]
    )
    ecc = CounterMetricFamily(
        "appliance_gpu_ecc_errors_total", "Memory errors since the driver was loaded.", labels=["gpu", "kind"]
    )
    links = CounterMetricFamily(
        "appliance_gpu_nvlink_errors_total",
        "Errors over all NVLinks of the GPU since they were brought up.",
        labels=["gpu", "kind"],
    )
    for reading in readings:
        gpu = str(reading.index)
        for name, holds in reading.throttles.items():
            slowed.add_metric([gpu, name], holds)
        for name, count in reading.ecc.items():
            ecc.add_metric([gpu, name], count)
        for name, count in reading.link_errors.items():
            links.add_metric([gpu, name], count)
    yield from (metric for metric in (slowed, ecc, links) if metric.samples)
