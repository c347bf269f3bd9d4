"""A worker's part at load: test the kernels, decide the routes, tell them, choose tactics, keep the rank's report."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.acceleration.report import RouteState
from appliance.rundir.cache_start import CacheStart
from appliance.rundir.plan import PlanRecord
from appliance.vllm_plugin.sm70 import (
    admission,
    kernel_build,
    operator_states,
    operators,
    providers,
    rank_report,
    routes,
    selftest,
    tactics,
)
from appliance.vllm_plugin.sm70.rank_report import RankReporter
from appliance.vllm_plugin.sm70.routes import Facts, RequirementError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger("vllm.appliance.sm70")

Told = tuple[dict[str, RouteState], dict[str, str]]
"""A rank's states, and its operators whose kernels are not usable, with the reasons."""


@dataclass(frozen=True)
class Settled:
    """What `settle` leaves behind: the worker calls `reporter.close()` in its shutdown."""

    states: Mapping[str, RouteState]
    reporter: RankReporter | None
    """None where no run directory is configured."""


def settle(config: Any, rank: int, group: tactics.Group) -> Settled:  # noqa: ANN401 - vLLM's VllmConfig
    """Settle this rank's routes: after the device and the groups are there, before the model is built.

    Every rank of `group`, the tensor parallel group, calls it at the same time. `routes.enabled` and `routes.served_by`
    answer afterwards. Every rank takes the states in which all agree: one whose kernels fail alone would change the
    tokens of all. Raises RequirementError, on every rank alike, where strict mode is on and an expected route is off;
    the line then stands in the rank's report too, for the server to exit with.
    """
    run_dir = Path(os.environ["APPLIANCE_RUN_DIR"]) if os.environ.get("APPLIANCE_RUN_DIR") else None
    plan = (PlanRecord.read(run_dir) if run_dir else None) or PlanRecord()
    cache = CacheStart.read(run_dir) if run_dir else None
    expected = plan.expected_acceleration or ()
    view = admission.view_of(config)
    facts = of_this_process(plan, cache)
    own = routes.decide(facts, view)
    told = _exchange(group, (own, operator_states.unusable(facts)))
    every = [each for each, _ in told]
    states = agreed(every, group.rank_in_group)
    # A CPU has no kernels: its operators are their references in any case.
    off = operator_states.off(states, [each for _, each in told], view.kv_format) if facts.capability else {}
    routes.adopt(states, off)
    providers.forget()
    operators.use_references(off, expand="dense_expand" not in off)
    _launch_decode_attention(states, facts.environment)
    _into_compile_key(config, off)
    if rank == 0:
        _log(states, expected, view, facts)
    elif differing := [name for name, state in own.items() if state.reason != every[0][name].reason]:
        logger.warning("SM70 routes of rank %d differ from rank 0's: %s", rank, ", ".join(differing))
    if routes.enabled("fp8_dense"):
        folder = os.environ.get("SM70_KERNELS_CACHE")
        rank_report.note("fp8_dense", tactic=tactics.settle(group, Path(folder) if folder else None).told())
    if run_dir is None:
        routes.require(states, expected, os.environ)
        return Settled(states, None)
    reporter = RankReporter(run_dir, rank, own, kernel_build.hashes())
    if rank == 0:
        rank_report.publish(run_dir, plan.profile or "none", expected, dict(enumerate(every)), plan.rehearsal)
    try:
        routes.require(states, expected, os.environ)
    except RequirementError as error:
        reporter.refuse(str(error))
        raise
    reporter.start()
    return Settled(states, reporter)


def of_this_process(plan: PlanRecord, cache: CacheStart | None) -> Facts:
    """Return the facts of a worker under a platform of ours; on CUDA the kernels are self-tested for it."""
    import torch
    from vllm.platforms import current_platform

    names = kernel_build.operators()
    cuda = bool(current_platform.is_cuda())
    capability = torch.cuda.get_device_capability() if cuda else None
    kernels = names.kernels if cuda else frozenset()
    return Facts(
        active=True,
        capability=capability,
        kernels=kernels,
        awaiting=names.awaiting if cuda else frozenset(),
        operators=names.defined,
        selftests=selftest.run(kernel_build.testable(kernels)) if kernels else {},
        environment=dict(os.environ),
        cache=cache,
        sources=routes.sources_of(plan),
    )


def agreed(every: Sequence[Mapping[str, RouteState]], rank: int) -> dict[str, RouteState]:
    """Return the states that all ranks bind: this rank's own, but off, with the reason, where any rank's is off."""
    found = dict(every[rank])
    for name, state in found.items():
        off = next((each[name] for each in every if each[name].state != "enabled"), None)
        if state.state == "enabled" and off is not None:
            found[name] = off
    return found


def _launch_decode_attention(states: Mapping[str, RouteState], environment: Mapping[str, str]) -> None:
    """Let decode attention's kernel be launched as its routes say; both change what a captured graph holds."""
    dual = states["dual_attention_b16"].state == "enabled"
    border = admission.min_batch(environment) or admission.MIN_BATCH_DEFAULT
    whole = operator_states.switched_off("long_context", states["long_context"].reason)
    operators.launch_decode_attention(border if dual else None, split=not whole)


def _into_compile_key(config: Any, off: Mapping[str, str]) -> None:  # noqa: ANN401 - vLLM's VllmConfig
    """Let vLLM's compile cache tell this start from one in which other operators served: the traced graph differs."""
    additional = getattr(config, "additional_config", None)
    if isinstance(additional, dict):
        additional["sm70_operators_off"] = dict(sorted(off.items()))


def _exchange(group: tactics.Group, own: Told) -> list[Told]:
    """Return what every rank of the group tells, in their order, the same on all."""
    if group.world_size == 1:
        return [own]
    import torch

    # Not broadcast_object: where vLLM has a message queue between its ranks, only the first may send.
    every: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(every, own, group=group.cpu_group)
    return every


def _log(states: Mapping[str, RouteState], expected: tuple[str, ...], view: admission.View, facts: Facts) -> None:
    defaults = admission.c32_defaults(view, facts.capability, facts.environment)
    for level, line in routes.log_lines(states, expected, view, defaults):
        (logger.warning if level == "warning" else logger.info)("%s", line)
