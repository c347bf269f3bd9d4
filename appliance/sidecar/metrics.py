"""GET /metrics: run directory, compile cache and GPUs as Prometheus metrics. What is not known is absent, never 0."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from appliance import rundir
from appliance.acceleration.routes import ROUTES
from appliance.health import judge
from appliance.rundir.cache_start import CacheStart
from appliance.rundir.heartbeat import Heartbeat
from appliance.rundir.phase import ON_THE_WAY
from appliance.sidecar import acceleration, metrics_cache, metrics_gpus, metrics_ranks
from appliance.sidecar.metadata import versions
from appliance.sidecar.records import living_phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from appliance.rundir.acceleration import AccelerationReport
    from appliance.rundir.phase import Phase
    from appliance.sidecar.services import Services

PHASES = (*ON_THE_WAY, "ready", "degraded", "stalled", "draining", "dead")

LONGEST_REASON = 120

STATES = ("enabled", "disabled", "not_applicable")


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
            yield from _beat(Heartbeat.read(run_dir), now)
            known, problem = services.engine.known, services.engine.problem()
            told = acceleration.newest(run_dir, known, problem)
            yield from _routes(told)
            yield from metrics_ranks.collect(told)
            yield GaugeMetricFamily(
                "appliance_acceleration_report_stale",
                "1 when the engine does not answer for its routes now, so that the last known ones are told.",
                problem is not None,
            )
        yield from metrics_cache.collect(services.cache.latest, CacheStart.read(run_dir))
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
    if report.phase not in ("dead", *ON_THE_WAY):
        yield GaugeMetricFamily(
            "appliance_stalled",
            "1 when there is work and no step for longer than the grace.",
            report.phase == "stalled",
        )


def _phase(phase: Phase | None, now: float) -> Iterator[Metric]:
    if phase is None:
        return
    if phase.since is not None:
        in_phase = now - phase.since
        yield GaugeMetricFamily("appliance_phase_seconds", "Seconds since the guardian entered its phase.", in_phase)
    if phase.budget_s is not None:
        yield GaugeMetricFamily("appliance_start_budget_seconds", "Seconds that a start may take.", phase.budget_s)
    if phase.restarts is not None:
        yield CounterMetricFamily(
            "appliance_engine_restarts_total", "Restarts of the engine since the appliance started.", phase.restarts
        )


def _beat(beat: Heartbeat | None, now: float) -> Iterator[Metric]:
    if beat is None or beat.at is None:
        return
    age = now - beat.at
    yield GaugeMetricFamily("appliance_heartbeat_age_seconds", "Seconds since the engine's last heartbeat.", age)
    if beat.step_at is not None:
        age = now - beat.step_at
        yield GaugeMetricFamily("appliance_step_age_seconds", "Seconds since the engine's last step.", age)
    for name, text, gauge in (
        ("appliance_requests_running", "Requests that the engine computes", beat.running),
        ("appliance_requests_waiting", "Requests that wait for a place in the engine", beat.waiting),
        ("appliance_requests_in_flight", "Requests that the API server has not finished answering", beat.in_flight),
        ("appliance_kv_cache_usage_ratio", "Share of the KV pages in use, 0 to 1", beat.kv_usage),
    ):
        if gauge is not None:
            yield GaugeMetricFamily(name, f"{text}, as of the last heartbeat.", gauge)
    for name, text, counter in (
        ("appliance_steps_total", "Steps that the engine has executed", beat.step_count),
        ("appliance_requests_finished_total", "Requests finished", beat.finished),
        ("appliance_prompt_tokens_total", "Prompt tokens", beat.prompt_tokens),
        ("appliance_generation_tokens_total", "Generated tokens", beat.generation_tokens),
    ):
        if counter is not None:
            yield CounterMetricFamily(name, f"{text} since the engine's process started.", counter)


def _routes(report: AccelerationReport | None) -> Iterator[Metric]:
    if report is None:
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
        route = report.routes.get(name)
        if route is None:
            continue
        for each in STATES:
            state.add_metric([name, each], route.state == each)
        if route.reason is not None:
            why.add_metric([name, route.reason[:LONGEST_REASON]], 1)
    yield state
    yield why
