"""The compile cache as Prometheus metrics. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from appliance.rundir.cache_start import CacheStart
    from appliance.sidecar.cache_state import Look

STATES = ("sealed", "building", "broken")
STARTS = ("cold", "warm", "resumed", "disabled")


def collect(look: Look | None, start: CacheStart | None) -> Iterator[Metric]:
    """Yield what is known of the volume from `look`, and of the running start from cache.json."""
    if look is not None and look.problem is None:
        yield from _volume(look)
    if start is not None:
        yield from _start(start)


def _volume(look: Look) -> Iterator[Metric]:
    count = GaugeMetricFamily("appliance_cache_generations", "Generations of the compile cache.", labels=["state"])
    size = GaugeMetricFamily("appliance_cache_bytes", "Size of the compile cache's generations.", labels=["state"])
    for state in STATES:
        found = [one for one in look.generations if one.state == state]
        count.add_metric([state], len(found))
        size.add_metric([state], sum(one.size_bytes for one in found))
    yield count
    yield size
    yield GaugeMetricFamily(
        "appliance_cache_generations_in_use",
        "Generations that an engine or a job holds.",
        sum(one.in_use for one in look.generations),
    )
    for name, text, value in (
        ("appliance_cache_disk_free_bytes", "Free space on the compile cache's volume.", look.disk_free),
        ("appliance_cache_disk_size_bytes", "Size of the compile cache's volume.", look.disk_total),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, text, value)


def _start(start: CacheStart) -> Iterator[Metric]:
    state = start.state if start.enabled else "disabled"
    if state in STARTS:
        metric = GaugeMetricFamily(
            "appliance_cache_start",
            "1 for how the running engine started on the compile cache, else 0.",
            labels=["state"],
        )
        for each in STARTS:
            metric.add_metric([each], each == state)
        yield metric
    if start.sealed is not None:
        text = "1 when the running engine's generation is sealed."
        yield GaugeMetricFamily("appliance_cache_sealed", text, start.sealed)
    if start.tokens_match is not None:
        yield GaugeMetricFamily(
            "appliance_cache_tokens_match",
            "1 when the warm start gave the greedy tokens of the cold one.",
            start.tokens_match,
        )
