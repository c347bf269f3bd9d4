"""`appliance plan`: what would be started, each value with its source. Starts and writes nothing."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.launch import settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping

    from appliance.launch.plan import Plan, PlannedModel, Sourced

SUMMARY = "Show what would be started: every value with its source, the command line, the memory. Nothing is started."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this verb's options."""
    parser.add_argument("--json", action="store_true", help="print JSON: plan.json with `compile_cache` added")
    parser.add_argument("--settings", action="store_true", help="print the table of all settings instead")
    settings.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan, or the table of settings. Returns 0; what does not fit is an error of its own."""
    if arguments.settings:
        rows = [setting.to_json() for setting in settings.SETTINGS.values()]
        print(json.dumps(rows, indent=2) if arguments.json else "\n".join(_settings_table()))
        return 0
    from appliance.launch import generation, request, resolve

    plan = resolve.resolve(request.from_arguments(arguments, os.environ, Path.cwd()))
    cache = generation.describe(plan, os.environ)
    if arguments.json:
        print(json.dumps({**plan.to_json(), "compile_cache": cache}, indent=2, ensure_ascii=False))
    else:
        print("\n".join(to_text(plan, cache)))
    return 0


def to_text(plan: Plan, cache: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that a person reads. `cache` is the generation as appliance.launch.generation describes it."""
    yield f"{plan.profile}: {plan.title}"
    yield from _group("Profile", _selection(plan.selection))
    yield from _group("GPUs", _gpus(plan))
    yield from _group("Model", _checkpoint(plan.model))
    yield from _group("Draft", _checkpoint(plan.draft))
    yield from _group("Memory", plan.memory["explanation"] if plan.memory else [])
    yield from _group("Settings", _sourced(plan.settings))
    yield from _group("vLLM arguments", _sourced(plan.arguments))
    yield from _group("Environment of the engine, added", _sourced(plan.environment))
    yield from _group("Compile cache", _cache(cache))
    yield from _group("Expected acceleration", plan.expected_acceleration)
    yield from _group("Versions", [f"{name} {version}" for name, version in plan.versions.items()])
    yield from _group("Warnings", plan.warnings)
    yield from _group("Command", [" \\\n    ".join(_by_option(plan.command))])


def _group(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = [f"  {line}" for line in lines]
    if found:
        yield from ("", title, *found)


def _selection(selection: Mapping[str, Any]) -> Iterator[str]:
    yield f"{selection['chosen']}: {selection['source']}"
    for fit in (*selection["ranked"], *selection["rejected"]):
        if fit["profile"] != selection["chosen"]:
            yield f"not {fit['profile']}: {'; '.join(fit['reasons'])}"


def _gpus(plan: Plan) -> Iterator[str]:
    for gpu in plan.machine["gpus"]:
        if gpu["index"] in plan.gpus:
            yield f"{gpu['index']}: {gpu['name']}"
    if plan.gpus:
        yield plan.selection["gpus_reason"]
    yield from plan.selection["advice"]
    yield from plan.machine["notes"]


def _checkpoint(model: PlannedModel | None) -> Iterator[str]:
    if model is None:
        return
    at = f" at {model.revision}" if model.revision else ""
    whence = {"download": f"downloaded from {model.repository}{at}", "package": f"converted from {model.repository}"}
    yield f"{model.folder} ({model.kind}; {whence.get(model.origin, 'used as it is')}; {model.source})"


def _cache(cache: Mapping[str, Any]) -> Iterator[str]:
    if cache["problem"]:
        yield cache["problem"]
        return
    yield cache["folder"]
    for name, part in cache["parts"].items():
        yield f"{name:<12}  {part}"


def _sourced(values: Mapping[str, Sourced]) -> Iterator[str]:
    width = max(map(len, values), default=0)
    for name, sourced in values.items():
        yield f"{name:<{width}}  {_value(sourced.value)}  ({sourced.source})"


def _value(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _by_option(command: Iterable[str]) -> Iterator[str]:
    """Yield the command for a shell, one option with its values at a time."""
    line: list[str] = []
    for word in command:
        if word.startswith("--") and line:
            yield shlex.join(line)
            line = []
        line.append(word)
    yield shlex.join(line)


def _settings_table() -> Iterator[str]:
    for setting in settings.SETTINGS.values():
        standard = setting.derived if setting.default is None else _value(setting.default)
        yield f"{setting.option}  {setting.variable}"
        yield f"    {setting.help}; wanted {setting.wanted}" + (f"; default: {standard}" if standard else "")
    yield ""
    yield "In the file of --config the key is the option's name. Arguments of vLLM go under its key `engine`, into"
    yield "variables APPLIANCE_ENGINE_NAME, or after -- on the command line, which wins."
