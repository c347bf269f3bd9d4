"""What becomes of each SM70 route in this process, and what the binding modules ask while they bind.

`decide` is pure. A worker decides once, at load, and `adopt`s the answer; whoever binds a layer then asks `enabled` or
`served_by`. Importable without torch and vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.acceleration import report
from appliance.acceleration.report import RouteState
from appliance.acceleration.routes import NOT_BUILT, REFERENCE, ROUTES, UPSTREAM, Route
from appliance.errors import nearest
from appliance.rundir.plan import SourcedValue
from appliance.vllm_plugin.sm70 import admission, operator_states

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from appliance.rundir.cache_start import CacheStart
    from appliance.rundir.plan import PlanRecord
    from appliance.vllm_plugin.sm70.admission import Default, View
    from appliance.vllm_plugin.sm70.selftest import SelfTest

VOLTA = (7, 0)

KERNEL = "kernel"
"""As `served_by`: the route's own kernels."""

STRICT = "VLLM_SM70_REQUIRE_PROFILE_ACCELERATION"
"""The variable that refuses a start with an expected route off."""

OTHER_SWITCHES = frozenset({"mixed_prefill_step_latency_ms"})
"""Keys beside the routes' own."""

ARGUMENTS = {
    report.KV_DTYPE: "kv_cache_dtype",
    report.PAGE_SIZE: "block_size",
    report.PAGE_ALIGNMENT: "block_size",
    "budget": "max_num_batched_tokens",
    "method": "speculative_config",
    "num_speculative_tokens": "speculative_config",
    "enforce_eager": "enforce_eager",
    "cudagraph_mode": "compilation_config",
    "enable_prefix_caching": "enable_prefix_caching",
    "contract_mismatch:tensor_parallel_size": "tensor_parallel_size",
    "contract_mismatch:pipeline_parallel_size": "pipeline_parallel_size",
    "contract_mismatch:method": "speculative_config",
    "contract_mismatch:captured": "cudagraph_capture_sizes",
    "contract_mismatch:dtype": "dtype",
}
"""vLLM's argument behind a reason, so that the report says where it was set."""


@dataclass(frozen=True)
class Facts:
    """What a process knows of its card, its kernels and its surroundings."""

    active: bool
    """Whether a platform of ours is in force; without one no route applies."""
    capability: tuple[int, int] | None = None
    """Of the card; None on a CPU."""
    kernels: frozenset[str] = frozenset()
    """Operators with a kernel of ours on this device, and the registry's kernels."""
    awaiting: frozenset[str] = frozenset()
    """Names whose kernel is built and no GPU has proven yet: it serves nobody."""
    operators: frozenset[str] = frozenset()
    """Every defined `torch.ops.sm70.*`, with a kernel or as plain torch."""
    selftests: Mapping[str, SelfTest] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    cache: CacheStart | None = None
    """None where nothing keeps the compile cache."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each argument of vLLM was set, in the plan's words."""


def sources_of(plan: PlanRecord) -> dict[str, str]:
    """Return the source of each argument in the plan; nothing where no plan was made."""
    return {name: each.source or "default" for name, each in (plan.arguments or {}).items()}


def decide(facts: Facts, config: View) -> dict[str, RouteState]:
    """Return the state of every route.

    In this order a route is off: our platform is not in force, or the model has no such layers (`not_applicable`); a
    person switched it off (`user_override`); the configuration does not admit it; an operator's kernel was proven on
    no GPU yet (`kernel_awaits_gpu:OP`); an operator has no kernel here (`operator_missing:OP`); an operator failed its
    self-test (`selftest_failed:OP`).

    `details` has `capability` (kernel, reference or absent: what this build and card have for it), `served_by` (kernel,
    reference, upstream or the route that serves instead), `self_test` by operator, and `not_built` where the reason is
    a kernel that this build has on no card: such a route is told, and the engine is ready without it.
    """
    states: dict[str, RouteState] = {}
    for name, route in ROUTES.items():
        if not facts.active:
            states[name] = RouteState("not_applicable", report.NOT_APPLICABLE)
        elif name == "compile_cache":
            states[name] = compile_cache(facts.environment, facts.cache)
        else:
            states[name] = _decide(route, facts, config)
    return operator_states.with_owners(states)


def _decide(route: Route, facts: Facts, config: View) -> RouteState:
    details: dict[str, Any] = {"capability": capability_of(route, facts)}
    refused = admission.ADMISSIONS[route.admission](config)
    if refused == report.NOT_APPLICABLE:
        return RouteState("not_applicable", report.NOT_APPLICABLE, details=details)
    tested = [facts.selftests[name] for name in route.operators if name in facts.selftests]
    if tested:
        details["self_test"] = {each.operator: each.told() for each in tested}
    reason, source = _switched_off(route, facts, config) or (None, _switch_source(route, facts, config))
    if reason is None and refused is not None:
        source = source_of(refused, facts.sources)
        # A person who asks for eager execution has switched this route off by its own switch.
        asked = route.switch == "--enforce-eager" and config.enforce_eager and not _ours(source)
        reason = report.USER_OVERRIDE if asked else refused
    if reason is None:
        reason = _unable(route, facts, details)
    details["served_by"] = _server(route, facts, reason)
    return RouteState("disabled" if reason else "enabled", reason, source, details)


def _switched_off(route: Route, facts: Facts, config: View) -> tuple[str, str] | None:
    """Return the reason and the source of a route that a switch turns off, None where none does."""
    wanted = config.switches.get(route.switch, route.default)
    source = facts.sources.get("additional_config", "default")
    if wanted is False:
        theirs = route.switch in config.switches and not _ours(source)
        return (report.USER_OVERRIDE if theirs else report.unequal(route.switch, actual=False, expected=True)), source
    # The variable is this route's switch too: a batch that no step reaches turns it off.
    given = facts.environment.get(admission.MIN_BATCH, "") if route.name == "dual_attention_b16" else ""
    if given.strip().isdecimal() and int(given) > config.max_num_seqs:
        return report.USER_OVERRIDE, f"environment {admission.MIN_BATCH}"
    return None


def _switch_source(route: Route, facts: Facts, config: View) -> str:
    if route.switch.startswith("--"):
        return facts.sources.get(route.switch.removeprefix("--").replace("-", "_"), "default")
    return facts.sources.get("additional_config", "default") if route.switch in config.switches else "default"


def _ours(source: str) -> bool:
    """Whether nobody but us set a value: a default, the profile alone, or what we derived."""
    return source.startswith(("default", "profile", "derived"))


def source_of(reason: str, sources: Mapping[str, str]) -> str:
    """Return where the argument behind a reason of the configuration was set."""
    word = reason.partition("=")[0].partition("<")[0]
    return sources.get(ARGUMENTS.get(word, word), "default")


def _unable(route: Route, facts: Facts, details: dict[str, Any]) -> str | None:
    """Return why the card and the kernels cannot run a route that is wanted and admitted. Marks what is not built."""
    card = facts.capability
    if route.name == "dual_attention_b16" and card is not None and card != VOLTA:
        seen = ".".join(map(str, card))
        return report.contract_mismatch("capability", seen, "7.0")
    for name in route.operators:
        if name in facts.awaiting:
            details[report.NOT_BUILT] = True
            return report.kernel_awaits_gpu(name)
        if name not in facts.kernels:
            # Defined without a kernel, or not defined at all: no card has it with this build.
            if name in NOT_BUILT or name in facts.operators:
                details[report.NOT_BUILT] = True
            return report.operator_missing(name)
    failed = (facts.selftests[name] for name in route.operators if name in facts.selftests)
    return next((each.reason for each in failed if not each.passed), None)


def capability_of(route: Route, facts: Facts) -> str:
    """Return what this build and card have for a route: kernel, reference or absent."""
    if all(name in facts.kernels for name in route.operators):
        return KERNEL
    return REFERENCE if all(name in facts.operators for name in route.operators) else "absent"


def _server(route: Route, facts: Facts, reason: str | None) -> str:
    """Return who computes a route's layers. On a CPU our operators are plain torch, and serve unless switched off."""
    if reason is None:
        return KERNEL
    switched = operator_states.switched_off(route.name, reason)
    defined = bool(route.operators) and all(name in facts.operators for name in route.operators)
    if facts.capability is None and defined and not switched:
        return REFERENCE
    return route.fallback


def compile_cache(environment: Mapping[str, str], cache: CacheStart | None) -> RouteState:
    """Return the state of the compile cache, out of its switch and of what it did for this start."""
    name = ROUTES["compile_cache"].switch
    given = environment.get(name, "0")
    source = "default" if given == "0" else f"environment {name}"
    if cache is None:
        return RouteState("enabled") if given == "0" else RouteState("disabled", report.COMPILE_CACHE_DISABLED, source)
    reason = cache.reason or "unknown"
    details = {"state": cache.state, "reason": cache.reason, "key": cache.key, "rebuilt": cache.rebuilt}
    if cache.enabled and reason != report.WARM_TOKENS_DIFFER:
        return RouteState("enabled", source=source, details=details)
    plain = (report.USER_OVERRIDE, report.COMPILE_CACHE_DISABLED, report.WARM_TOKENS_DIFFER)
    return RouteState("disabled", reason if reason in plain else report.cache_unusable(reason), source, details)


def before_load(
    *, active: bool, plan: PlanRecord, environment: Mapping[str, str], cache: CacheStart | None = None
) -> dict[str, Any]:
    """Return the report for acceleration.json until the ranks have decided: what the plan and this build alone tell.

    `plan` is empty where no plan was made; `cache` is None where nothing keeps the compile cache. A route that this
    build has the operators for is `not_reported`.
    """
    profile = plan.profile or "none"
    if not active:
        return report.all_not_applicable(profile)
    states = {name: _before_load(route) for name, route in ROUTES.items()}
    states["compile_graph"] = _compile_graph(plan)
    states["compile_cache"] = compile_cache(environment, cache)
    return report.report(profile, plan.expected_acceleration or (), states, plan.rehearsal)


def _before_load(route: Route) -> RouteState:
    for name in route.operators:
        if name in NOT_BUILT:
            return RouteState("disabled", report.operator_missing(name), details={report.NOT_BUILT: True})
    return RouteState("disabled", report.NOT_REPORTED)


def _compile_graph(plan: PlanRecord) -> RouteState:
    eager = (plan.arguments or {}).get("enforce_eager", SourcedValue(source="default"))
    source = eager.source
    if not eager.value:
        return RouteState("enabled", source=source)
    reason = report.unequal("enforce_eager", actual=True, expected=False) if _ours(source) else report.USER_OVERRIDE
    return RouteState("disabled", reason, source)


def check_switches(switches: Mapping[str, object], environment: Mapping[str, str]) -> None:
    """Raise ValueError, one line, for a key of the plugin's switches that is misspelt or not of its kind.

    For the platform to call while vLLM builds its configuration, where such an error ends the start as a mistake in it.
    """
    known = {route.switch for route in ROUTES.values() if not route.switch.startswith(("--", "VLLM_"))}
    for name, value in switches.items():
        if name in known and not isinstance(value, bool):
            raise ValueError(f"additional_config sm70.{name} is {value!r}; wanted is true or false")
        if name not in known and name not in OTHER_SWITCHES:
            names = sorted(known | OTHER_SWITCHES)
            raise ValueError(f"additional_config sm70.{name} is no switch{nearest(name, names)}")
    admission.min_batch(environment)


class RequirementError(RuntimeError):
    """A start with expected routes off, which VLLM_SM70_REQUIRE_PROFILE_ACCELERATION forbids: one line."""


def require(states: Mapping[str, RouteState], expected: Iterable[str], environment: Mapping[str, str]) -> None:
    """Raise RequirementError, naming the routes with their reasons, where strict mode is on and one is off."""
    if environment.get(STRICT, "0").strip().lower() in ("", "0", "false", "no", "off"):
        return
    off = [f"{name} ({states[name].reason})" for name in expected if states[name].state != "enabled"]
    if off:
        many = f"{len(off)} expected route{'' if len(off) == 1 else 's'}"
        raise RequirementError(
            f"{STRICT}=1 refuses to start with {many} off: {', '.join(off)}; mend what the reasons name, or start "
            "without it"
        )


def log_lines(
    states: Mapping[str, RouteState], expected: Iterable[str], config: View, defaults: Mapping[str, Default]
) -> list[tuple[str, str]]:
    """Return the lines, with `info` or `warning`, that tell capabilities and final switches before graph capture."""
    expected = tuple(expected)
    on = [name for name in expected if states[name].state == "enabled"]
    lines = [("info", f"SM70 routes: {len(on)} of {len(expected)} expected ones are on: {', '.join(on) or 'none'}")]
    found = ", ".join(f"{name}={state.details.get('capability', 'absent')}" for name, state in states.items())
    lines.append(("info", f"SM70 route capabilities: {found}"))
    switches = [f"{name}={value!r}" for name, value in sorted(config.switches.items())]
    switches += [f"{name}={default.value} ({default.source})" for name, default in sorted(defaults.items())]
    lines.append(("info", f"SM70 switches: {', '.join(switches) or 'none set, every route has its default'}"))
    lines.append(("info", kv_line(config)))
    for name in expected:
        state = states[name]
        if state.state != "enabled":
            instead = state.details.get("served_by", UPSTREAM)
            lines.append(("warning", f"SM70 route {name} is off: {state.reason} ({state.source}); {instead} serves"))
    return lines


def kv_line(config: View) -> str:
    """Say what the KV cache is stored as, and what `fp8` was taken for."""
    asked, found = config.kv_cache_dtype, config.kv_format
    told = {
        "auto": "in FP16",
        "fp8_e4m3": "as E4M3 with the checkpoint's scales, 1.0 where it has none",
        "fp8_e5m2": "as E5M2 without scales, because fp8_e5m2 was asked for",
    }.get(found, f"as {found}")
    alias = "; fp8 means E4M3 here, and E5M2 is taken only as fp8_e5m2" if asked == "fp8" else ""
    return f"SM70 KV cache: --kv-cache-dtype {asked} is stored {told}{alias}"


_STATES: dict[str, RouteState] = {}
_OFF: dict[str, str] = {}


def adopt(states: Mapping[str, RouteState], off: Mapping[str, str] | None = None) -> None:
    """Make these states the ones that `enabled` and `served_by` answer from in this process.

    `off` are the operators whose kernels do not serve, with the reasons that `operator_off` gives.
    """
    _STATES.clear()
    _STATES.update(states)
    _OFF.clear()
    _OFF.update(off or {})


def adopted() -> dict[str, RouteState]:
    """Return the adopted states; none before `adopt`."""
    return dict(_STATES)


def operator_off(name: str) -> str:
    """Return why an operator's kernel does not serve in this process; empty where it may, and before `adopt`."""
    return _OFF.get(name, "")


def declined(name: str) -> bool:
    """Whether a route is decided, and off by its switch or the configuration: its operators may serve another."""
    return (
        bool(_STATES) and _state(name).state == "disabled" and not operator_states.of_an_operator(_state(name).reason)
    )


def switched_off(name: str) -> bool:
    """Whether a route's layers are to be vLLM's own: the route is decided, and off with `upstream` to serve instead."""
    return bool(_STATES) and _state(name).state != "enabled" and served_by(name) == UPSTREAM


def enabled(name: str) -> bool:
    """Whether a route's kernels are to be bound. Raises RuntimeError before `adopt`, KeyError for an unknown name."""
    return _state(name).state == "enabled"


def served_by(name: str) -> str:
    """Return who is to compute a route's layers: kernel, reference, upstream, or the name of another route.

    Raises RuntimeError before `adopt`, KeyError for an unknown name.
    """
    return str(_state(name).details.get("served_by", UPSTREAM))


def _state(name: str) -> RouteState:
    if name not in ROUTES:
        raise KeyError(f"no route {name!r} in appliance.acceleration.routes")
    if not _STATES:
        raise RuntimeError(f"route {name} was asked for before this process decided its routes (routes.adopt)")
    return _STATES[name]
