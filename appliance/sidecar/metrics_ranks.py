"""Metrics of what the engine's ranks count and keep, out of the engine's own report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from appliance.acceleration.routes import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from appliance.rundir.acceleration import AccelerationReport

EXECUTIONS = ("full_graph", "piecewise_graph", "eager")
PROVIDERS = ("kernel", "expansion", "triton", "reference")
RESIDENT = ("fp8_linear_weights", "fp8_head_weights", "other_weights", "workspaces", "kv_cache", "graphs")
"""Only known names: what a report calls its figures must not make series without end."""

MOST_RANKS = 64


def collect(report: AccelerationReport | None) -> Iterator[Metric]:
    """Yield the metrics of every rank that reports; none where no rank does."""
    if report is None:
        return
    counters, resident = _ranks(report.counters), _ranks(report.resident_bytes)
    if counters:
        yield _steps(counters)
        yield from _operators(counters)
        broken = CounterMetricFamily(
            "appliance_nonfinite_requests_total", "Requests that a rank saw end with broken logits.", labels=["rank"]
        )
        for rank, counts in counters.items():
            broken.add_metric([rank], counts.get("nonfinite_requests", 0))
        yield broken
    if any(resident.values()):
        kept = GaugeMetricFamily("appliance_resident_bytes", "What stays in a rank's memory.", labels=["rank", "what"])
        for rank, sizes in resident.items():
            for name in RESIDENT:
                if name in sizes:
                    kept.add_metric([rank, name], sizes[name])
        yield kept


def _steps(counters: Mapping[str, Mapping[str, int]]) -> Metric:
    steps = CounterMetricFamily(
        "appliance_rank_steps_total",
        "Steps of a rank by how the model ran: one CUDA graph, graphs between attention layers, or none.",
        labels=["rank", "execution"],
    )
    for rank, counts in counters.items():
        for execution in EXECUTIONS:
            steps.add_metric([rank, execution], counts.get(f"compile_graph.{execution}", 0))
    return steps


def _operators(counters: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    labels = ["rank", "operator", "provider"]
    calls = CounterMetricFamily(
        "appliance_operator_calls_total", "Calls of an SM70 operator, replays of graphs included.", labels=labels
    )
    rows = CounterMetricFamily(
        "appliance_operator_rows_total", "Rows of these calls; of graphs with their padding.", labels=labels
    )
    for rank, counts in counters.items():
        for operator in OPERATORS:
            for provider in PROVIDERS:
                name = f"{operator}.{provider}"
                if name in counts:
                    calls.add_metric([rank, operator, provider], counts[name])
                    rows.add_metric([rank, operator, provider], counts.get(f"{name}.rows", 0))
    yield from (calls, rows)


def _ranks(told: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    return {
        rank: figures
        for rank, figures in told.items()
        if rank.isascii() and rank.isdecimal() and len(rank) < 3 and int(rank) < MOST_RANKS
    }
