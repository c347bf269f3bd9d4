"""The engine's arguments from all layers, what they may not be, and the command line that they make."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from appliance.errors import ConfigurationError
from appliance.launch import arguments
from appliance.launch.layers import PASSTHROUGH, both, over
from appliance.launch.plan import Sourced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.launch.options import Options
    from appliance.profiles.schema import Profile

SERVE = "appliance.vllm_plugin.server.serve"
MIDDLEWARE = "appliance.vllm_plugin.server.gate.Gate"
SCHEDULER = "appliance.vllm_plugin.progress.scheduler.recording_scheduler"

_FIRST = ("model", "served_model_name", "host", "port")
"""Written first, because a person looks for them."""


def combine(
    profile: Profile,
    settings: Mapping[str, Sourced],
    below: Mapping[str, Sourced],
    after: Options,
    *,
    model: Sourced,
    draft: Sourced | None,
) -> dict[str, Sourced]:
    """Return every argument of vLLM with its source: profile < `below` (file, environment) < `after` (`--`).

    `model` and `draft` are folders. Raises ConfigurationError where the profile names an argument wrongly, and where
    a key is set in what is no mapping.
    """
    found = _of_profile(profile, draft)
    for name, sourced in below.items():
        found[name] = over(name, found.get(name), sourced)
    for name, value in after.whole.items():
        found[name] = over(name, found.get(name), Sourced(value, PASSTHROUGH))
    for name, keys in after.keys.items():
        found[name] = _keyed(name, found.get(name), keys)
    if draft is not None:
        _fill_draft(profile, found, draft)
    found["middleware"] = _with_middleware(found.get("middleware"))
    found["structured_outputs_config"] = _with_backend(found.get("structured_outputs_config"))
    found.update(model=model, host=settings["host"], port=settings["port"])
    if "served_model_name" not in found:
        served = settings["served_model_name"]
        found["served_model_name"] = Sourced([served.value], served.source)
    found = {name: sourced for name, sourced in found.items() if sourced.value is not None}
    refuse(found)
    return dict(sorted(found.items()))


def _of_profile(profile: Profile, draft: Sourced | None) -> dict[str, Sourced]:
    source = f"profile {profile.name}"
    found = {
        spec.name: Sourced(arguments.parse(spec, value, source), source)
        for spec, value in ((arguments.find(name, source), value) for name, value in profile.arguments.items())
    }
    if profile.sampling:
        found["override_generation_config"] = Sourced(dict(profile.sampling), source)
    if profile.switches:
        switches = Sourced({"sm70": dict(profile.switches)}, source)
        found["additional_config"] = over("additional_config", found.get("additional_config"), switches)
    if profile.draft is not None and draft is not None:
        options = {key: value for key, value in profile.draft.options.items() if key != "revision"}
        speculation = {
            "method": profile.draft.method,
            "model": draft.value,
            "num_speculative_tokens": profile.draft.num_speculative_tokens,
            **options,
        }
        found["speculative_config"] = Sourced(speculation, source)
    found.setdefault("scheduler_cls", Sourced(SCHEDULER, "derived: it records each step"))
    return found


def _keyed(name: str, lower: Sourced | None, keys: dict[str, Any]) -> Sourced:
    if lower is None or lower.value is None:
        return Sourced(keys, PASSTHROUGH)
    if not isinstance(lower.value, dict):
        option = arguments.table()[name].option
        whole = f"{lower.source} gives {arguments.shown(lower.value)}"
        raise ConfigurationError(f"{PASSTHROUGH}: {option}.KEY sets a key, but {whole}")
    return Sourced(arguments.merge(lower.value, keys), both(PASSTHROUGH, lower.source))


def _fill_draft(profile: Profile, found: dict[str, Sourced], draft: Sourced) -> None:
    """Give a speculation that was written anew, with the profile's method and without a model, the profile's draft."""
    given = found.get("speculative_config")
    if given is None or not isinstance(given.value, dict) or profile.draft is None:
        return
    if given.value.get("method") == profile.draft.method and "model" not in given.value:
        filled = {**given.value, "model": draft.value}
        found["speculative_config"] = Sourced(filled, both(given.source, draft.source))


def _with_middleware(given: Sourced | None) -> Sourced:
    ours = Sourced([MIDDLEWARE], "derived: the heartbeat, and the key on every path")
    if given is None:
        return ours
    # vLLM adds each as the next outer one. Ours is the innermost: what waits in theirs does not wait for the engine.
    others = [name for name in given.value if name != MIDDLEWARE]
    return Sourced([MIDDLEWARE, *others], both(given.source, ours.source))


BACKENDS = ("xgrammar", "guidance")
"""Libraries for structured outputs with which the API server checks exactly what the engine's core compiles."""


def _with_backend(given: Sourced | None) -> Sourced:
    """Name one library for structured outputs: by itself vLLM checks a request by any, and compiles by the first's."""
    ours = Sourced({"backend": BACKENDS[0]}, "derived: one grammar library checks and compiles")
    if given is None:
        return ours
    if not isinstance(given.value, dict):
        return given
    backend = given.value.get("backend")
    if backend is None:
        return Sourced(ours.value | given.value, both(given.source, ours.source))
    if backend not in BACKENDS:
        raise ConfigurationError(
            f"{given.source}: --structured-outputs-config.backend {backend} is refused: a request could pass its check "
            f"and end the engine; use {' or '.join(BACKENDS)}"
        )
    return given


_ONE_ENGINE = "health watches one engine on one machine; start one appliance for each replica"
_RANKS = "the memory plan and the kernels are for tensor parallel ranks; use --tensor-parallel-size"
_CONTRACTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "api_server_count": ((1,), "the heartbeat comes from one API server"),
    "headless": ((False,), "health asks the API server, which a headless engine has not"),
    "pipeline_parallel_size": ((1,), _RANKS),
    "prefill_context_parallel_size": ((1,), _RANKS),
    "nnodes": ((1,), _ONE_ENGINE),
    "node_rank": ((0,), _ONE_ENGINE),
    "data_parallel_size": ((1,), _ONE_ENGINE),
    "data_parallel_size_local": ((1,), _ONE_ENGINE),
    "data_parallel_rank": ((), _ONE_ENGINE),
    "data_parallel_start_rank": ((), _ONE_ENGINE),
    "data_parallel_external_lb": ((False,), _ONE_ENGINE),
    "data_parallel_hybrid_lb": ((False,), _ONE_ENGINE),
    "disable_log_stats": ((False,), "the heartbeat, and with it health, is made of these statistics"),
    "uds": ((), "health asks the engine over TCP; use --host and --port"),
    "config": ((), "its values would escape the plan; give them under `engine` in the file of --config before --"),
    "hf_token": ((), "the engine never goes to the network; set HF_TOKEN for `appliance models fetch`"),
}
"""Arguments that would break what the appliance promises: the values that are allowed nevertheless, and why."""


def refuse(found: Mapping[str, Sourced]) -> None:
    """Raise ConfigurationError for an argument with which the appliance could not keep its promises."""
    for name, (allowed, why) in _CONTRACTS.items():
        sourced = found.get(name)
        if sourced is None or sourced.value in allowed:
            continue
        shown = "" if name == "hf_token" or sourced.value is True else f" {sourced.value}"
        raise ConfigurationError(f"{sourced.source}: {arguments.table()[name].option}{shown} is refused: {why}")


def command(found: Mapping[str, Sourced], after: Options) -> tuple[str, ...]:
    """Return the engine's argv. What came after `--` alone keeps its words and stands last; nothing stands twice."""
    as_given = [name for name in after.tokens if name in found and found[name].source == PASSTHROUGH]
    as_given = [name for name in as_given if not (name in after.whole and name in after.keys)]
    words: list[str] = [sys.executable, "-m", SERVE]
    rest = [name for name in found if name not in _FIRST]
    for name in [name for name in (*_FIRST, *rest) if name in found and name not in as_given]:
        words.extend(arguments.render(name, found[name].value))
    for name in as_given:
        words.extend(after.tokens[name])
    return tuple(words)


def speculative_tokens(below: Mapping[str, Sourced], after: Options) -> int | None:
    """Return how many tokens are drafted at once, 0 for no speculation, None where the profile's number stands."""
    number: object = after.keys.get("speculative_config", {}).get("num_speculative_tokens")
    source = PASSTHROUGH
    if number is None:
        if "speculative_config" in after.whole:
            given = after.whole["speculative_config"]
        elif "speculative_config" in below:
            given, source = below["speculative_config"].value, below["speculative_config"].source
        else:
            return None
        number = given.get("num_speculative_tokens", 0) if isinstance(given, dict) else 0
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        shown = arguments.shown(number)
        raise ConfigurationError(f"{source}: num_speculative_tokens is {shown}; wanted a whole number, 0 or more")
    return number


def drafts_with(found: Mapping[str, Sourced]) -> str | None:
    """Return the model that drafts, None without one."""
    given = found.get("speculative_config")
    model = given.value.get("model") if given is not None and isinstance(given.value, dict) else None
    return model if isinstance(model, str) else None
