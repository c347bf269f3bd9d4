"""GET /metrics: run directory, compile cache and GPUs as Prometheus metrics. What is not known is absent, never 0."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from appliance import rundir
from appliance.acceleration.routes import ROUTES
from appliance.health import judge
from appliance.sidecar import acceleration, metrics_cache, metrics_gpus
from appliance.sidecar.metadata import versions
from appliance.sidecar.records import living_phase, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from appliance.sidecar.services import Services

PHASES = (*judge.ON_THE_WAY, "ready", "degraded", "stalled", "draining", "dead")

LONGEST_REASON = 120

STATES = ("enabled", "disabled", "not_applicable")

GAUGES = {
    "running": ("appliance_requests_running", "Requests that the engine computes, as of the last heartbeat."),
    "waiting": (
        "appliance_requests_waiting",
        "Requests that wait for a place in the engine, as of the last heartbeat.",
    ),
    "in_flight": (
        "appliance_requests_in_flight",
        "Requests that the API server has not finished answering, as of the last heartbeat.",
    ),
    "kv_usage": ("appliance_kv_cache_usage_ratio", "Share of the KV pages in use, 0 to 1, as of the last heartbeat."),
}
COUNTERS = {
    "step": ("appliance_steps_total", "Steps that the engine has executed since its process started."),
    "finished": ("appliance_requests_finished_total", "Requests finished since the engine's process started."),
    "prompt_tokens": ("appliance_prompt_tokens_total", "Prompt tokens since the engine's process started."),
    "generation_tokens": ("appliance_generation_tokens_total", "Generated tokens since the engine's process started."),
}
"""The heartbeat's figures: name and help of the metric by the figure's name."""


def router(services: Services) -> APIRouter:
    """Return the endpoint over `services`."""
    registry = CollectorRegistry()
    registry.register(Facts(services))
    routes = APIRouter(tags=["metrics"])

    @routes.get(
        "/metrics",
        summary="The same facts for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Prometheus text format. A metric whose source is missing or stale is absent."""
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return routes


class Facts(Collector):
    """Reads the run directory anew at each scrape, and takes what the threads know; waits for nothing."""

    def __init__(self, services: Services) -> None:
        self.services = services

    def describe(self) -> list[Metric]:
        """Nothing: asked at registration, when the run directory may not be there."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric whose source is there."""
        services, run_dir, now = self.services, self.services.run_dir, rundir.clock()
        report = judge.report(run_dir, now)
        yield from _judged(report)
        yield from _phase(living_phase(run_dir, now), now)
        if report.phase != "dead":
            # Of a dead engine the heartbeat is a memory: its requests are neither running nor waiting.
            yield from _beat(rundir.read(run_dir, rundir.HEARTBEAT), now)
            known, problem = services.engine.known, services.engine.problem()
            yield from _routes(acceleration.record_of(run_dir, known, problem))
            yield GaugeMetricFamily(
                "appliance_acceleration_report_stale",
                "1 when the engine does not answer for its routes now, so that the last known ones are told.",
                problem is not None,
            )
        yield from metrics_cache.collect(services.cache.latest, rundir.read(run_dir, rundir.CACHE))
        yield from metrics_gpus.collect(services.gpus.latest(), time.monotonic())
        build = {name: str(value or "") for name, value in versions(run_dir).model_dump().items()}
        yield InfoMetricFamily("appliance_build", "Versions and hashes of what runs; empty where unknown.", build)


def _judged(report: judge.Report) -> Iterator[Metric]:
    phase = GaugeMetricFamily("appliance_phase", "1 for the phase that the probes report, else 0.", labels=["phase"])
    for name in PHASES:
        phase.add_metric([name], name == report.phase)
    yield phase
    yield GaugeMetricFamily("appliance_startup", "1 when /health/startup answers 200.", report.startup_ok)
    yield GaugeMetricFamily("appliance_live", "1 when /health/live answers 200.", report.live_ok)
    yield GaugeMetricFamily("appliance_ready", "1 when /health/ready answers 200.", report.ready_ok)
    if report.phase not in ("dead", *judge.ON_THE_WAY):
        yield GaugeMetricFamily(
            "appliance_stalled",
            "1 when there is work and no step for longer than the grace.",
            report.phase == "stalled",
        )


def _phase(phase: dict[str, Any] | None, now: float) -> Iterator[Metric]:
    if (since := number(phase, "since")) is not None:
        yield GaugeMetricFamily("appliance_phase_seconds", "Seconds since the guardian entered its phase.", now - since)
    if (budget := number(phase, "budget_s")) is not None:
        yield GaugeMetricFamily("appliance_start_budget_seconds", "Seconds that a start may take.", budget)
    if (restarts := number(phase, "restarts")) is not None:
        yield CounterMetricFamily(
            "appliance_engine_restarts_total", "Restarts of the engine since the appliance started.", restarts
        )


def _beat(heartbeat: dict[str, Any] | None, now: float) -> Iterator[Metric]:
    if (at := number(heartbeat, "at")) is None:
        return
    yield GaugeMetricFamily("appliance_heartbeat_age_seconds", "Seconds since the engine's last heartbeat.", now - at)
    if (step_at := number(heartbeat, "step_at")) is not None:
        yield GaugeMetricFamily("appliance_step_age_seconds", "Seconds since the engine's last step.", now - step_at)
    for figure, (name, text) in GAUGES.items():
        if (value := number(heartbeat, figure)) is not None:
            yield GaugeMetricFamily(name, text, value)
    for figure, (name, text) in COUNTERS.items():
        if (value := number(heartbeat, figure)) is not None:
            yield CounterMetricFamily(name, text, value)


def _routes(report: dict[str, Any] | None) -> Iterator[Metric]:
    routes = (report or {}).get("routes")
    if not isinstance(routes, dict):
        return
    state = GaugeMetricFamily(
        "appliance_route_state", "1 for the state that an SM70 route is in, else 0.", labels=["route", "state"]
    )
    why = GaugeMetricFamily(
        "appliance_route_reason",
        "1 for the reason why an SM70 route is not enabled; reasons are stable words.",
        labels=["route", "reason"],
    )
    # Only names of the table: what a report calls its routes must not make series without end.
    for name in ROUTES:
        route = routes.get(name)
        if not isinstance(route, dict):
            continue
        for each in STATES:
            state.add_metric([name, each], route.get("state") == each)
        if isinstance(reason := route.get("reason"), str):
            why.add_metric([name, reason[:LONGEST_REASON]], 1)
    yield state
    yield why
