"""The layers of one start: config file < environment < command line; each value keeps its source.

The profile lies below them; what follows `--` lies on top and is read by appliance.launch.options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.cache.facts import IMAGE
from appliance.errors import ConfigurationError, nearest
from appliance.launch import arguments, options, settings
from appliance.launch.plan import Sourced

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ENGINE_PREFIX = settings.PREFIX + "ENGINE_"
ENGINE_SECTION = "engine"
PASSTHROUGH = "vllm options"

OWNED = ("model", "served_model_name", "host", "port", "api_key")
"""vLLM arguments that are settings too. After `--` they set the setting; elsewhere the setting is the one way."""

_MERGED = ("additional_config",)
"""JSON arguments of which every layer sets its own keys: the plugin's switches are in it beside vLLM's."""

# Kubernetes gives every container of a namespace variables for each service in it, and a service may be called
# "appliance", "appliance-sidecar" or "appliance-engine": APPLIANCE_SERVICE_HOST, APPLIANCE_SERVICE_PORT_HTTP,
# APPLIANCE_PORT_8000_TCP_ADDR and, under the very name of a setting, APPLIANCE_PORT=tcp://10.0.0.7:8000.
_SERVICE_NAME = re.compile(r"APPLIANCE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SERVICE_VALUE = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True)
class Layers:
    """What a person set. `settings` holds only settings that some layer gave, `arguments` those below `--`.

    Both may hold secrets; what leaves this package is made by appliance.launch.resolve.
    """

    settings: dict[str, Sourced]
    arguments: dict[str, Sourced]
    options: options.Options
    passthrough: tuple[str, ...]
    warnings: tuple[str, ...]


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes, not a person, set this variable."""
    return bool(_SERVICE_NAME.fullmatch(name) or (name.endswith("_PORT") and _SERVICE_VALUE.match(value)))


def settle(given: Mapping[str, str], passthrough: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Layers:
    """Read every layer. `given` are the command line's settings by name, as text.

    Raises ConfigurationError for an unknown name, with the nearest valid one, and for a value of the wrong kind.
    """
    found, engine = _environment(environ, cwd)
    for name, text in given.items():
        setting = settings.find(name, "command line")
        found[name] = Sourced(settings.parse(setting, text, "command line", cwd), "command line")
    if "config" in found:
        lower, lower_engine = _file(Path(found["config"].value))
        found = {**lower, **found}
        engine = lower_engine | {name: over(name, lower_engine.get(name), upper) for name, upper in engine.items()}
    read = options.read_options(passthrough, PASSTHROUGH)
    # The key never leaves through the words of a plan.
    words = tuple(token for option in read if option.spec.name != "api_key" for token in option.tokens)
    after = options.settle(read)
    found = _own(found, after, cwd)
    warnings = [f"{name} is given more than once after --; the last one counts" for name in after.repeated]
    if "api_key" in found and found["api_key"].source in ("command line", PASSTHROUGH):
        warnings.append("--api-key is seen by every user of this machine in `ps`; use --api-key-file")
    return Layers(found, engine, after, words, tuple(warnings))


def over(name: str, lower: Sourced | None, upper: Sourced) -> Sourced:
    """Return what counts of an argument that two layers set: the upper one, or, where keys add up, both."""
    if name not in _MERGED or lower is None or not (isinstance(lower.value, dict) and isinstance(upper.value, dict)):
        return upper
    return Sourced(arguments.merge(lower.value, upper.value), both(upper.source, lower.source))


def both(upper: str, lower: str) -> str:
    """Return the source of a value that is made of two."""
    return upper if upper == lower else f"{upper} over {lower}"


def _environment(environ: Mapping[str, str], cwd: Path) -> tuple[dict[str, Sourced], dict[str, Sourced]]:
    found: dict[str, Sourced] = {}
    engine: dict[str, Sourced] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(settings.PREFIX) or variable == IMAGE or is_service_link(variable, text):
            continue
        source = f"environment {variable}"
        name = variable.removeprefix(ENGINE_PREFIX).lower()
        # engine_url is a setting, and vLLM has no argument `url`.
        if variable.startswith(ENGINE_PREFIX) and variable != settings.SETTINGS["engine_url"].variable:
            if name not in arguments.table():
                raise ConfigurationError(_unknown(variable))
            # Compose hands over a variable that is not set as an empty one.
            if text:
                engine[name] = _argument(name, text, source)
            continue
        name = variable.removeprefix(settings.PREFIX).lower()
        if name not in settings.SETTINGS:
            raise ConfigurationError(_unknown(variable))
        if text:
            found[name] = Sourced(settings.parse(settings.SETTINGS[name], text, source, cwd), source)
    return found, engine


def _unknown(variable: str) -> str:
    # Compared without the prefix, which would make every pair of names alike.
    known = {setting.name: setting.variable for setting in settings.SETTINGS.values()}
    name = variable.removeprefix(settings.PREFIX).lower()
    if variable.startswith(ENGINE_PREFIX) or name in arguments.table():
        known = {name: ENGINE_PREFIX + name.upper() for name in arguments.table()}
        name = variable.removeprefix(ENGINE_PREFIX).removeprefix(settings.PREFIX).lower()
    hint = nearest(name, known)
    for close, shown in known.items():
        hint = hint.replace(f'"{close}"', f'"{shown}"')
    return f'environment: no setting "{variable}"{hint or ";"} `appliance plan --settings` lists them'


def _argument(name: str, raw: object, source: str) -> Sourced:
    spec = arguments.find(name, source)
    if spec.name in OWNED:
        raise ConfigurationError(f"{source}: {spec.name} is a setting of the appliance; use {_ways(spec.name)}")
    return Sourced(arguments.parse(spec, raw, source), source)


def _ways(name: str) -> str:
    setting = settings.SETTINGS[name]
    return f"{setting.option}, {setting.variable} or the key {name} outside `{ENGINE_SECTION}`"


def _file(path: Path) -> tuple[dict[str, Sourced], dict[str, Sourced]]:
    found: dict[str, Sourced] = {}
    engine: dict[str, Sourced] = {}
    source = f"file {path}"
    for key, raw in _mapping(_load(path), source):
        if key == ENGINE_SECTION:
            for name, value in _mapping(raw, f"{source}: {ENGINE_SECTION}"):
                sourced = _argument(name, value, source)
                _once(engine, name.replace("-", "_"), sourced, source)
            continue
        if key.replace("-", "_") in arguments.table().keys() - settings.SETTINGS.keys():
            raise ConfigurationError(
                f"{source}: {key} is an argument of vLLM; it goes under the key `{ENGINE_SECTION}`"
            )
        setting = settings.find(key, source)
        if setting.name == "config":
            raise ConfigurationError(f"{source}: config names this file; one file cannot name another")
        if raw is not None:
            # Paths in a file are seen from the file, so that it means the same wherever it is used from.
            _once(found, setting.name, Sourced(settings.parse(setting, raw, source, path.parent), source), source)
    return found, engine


def _once(into: dict[str, Sourced], name: str, value: Sourced, source: str) -> None:
    if name in into:
        raise ConfigurationError(f"{source}: {name} is set twice, once with dashes and once with underscores")
    into[name] = value


def _mapping(raw: object, where: str) -> Iterator[tuple[str, Any]]:
    if raw is None:
        return
    if not isinstance(raw, dict):
        raise ConfigurationError(f"{where}: wanted keys with values (`key: value`), got {type(raw).__name__}")
    for key, value in raw.items():
        if not isinstance(key, str):
            raise ConfigurationError(f"{where}: the key {arguments.shown(key)} is no name; put quotes around it")
        yield key, value


def _load(path: Path) -> object:
    import yaml

    def check(node: yaml.Node, *above: yaml.Node) -> None:
        """Refuse a key that stands twice, of which YAML silently keeps the last, and an alias of what it stands in."""
        if node in above:
            raise yaml.MarkedYAMLError(problem="a value holds itself", problem_mark=node.start_mark)
        seen: set[str] = set()
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f'the key "{key.value}" stands twice', problem_mark=key.start_mark)
            seen.add(key.value)
            check(value, node, *above)
        for item in node.value if isinstance(node, yaml.SequenceNode) else ():
            check(item, node, *above)

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if node is None:
            return None
        check(node)
        return loader.construct_document(node)
    except OSError as error:
        raise ConfigurationError(f"--config {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"--config {path}: is not text in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ConfigurationError(f"--config {path}{line}: is not the YAML that is wanted ({problem})") from None


def _own(found: dict[str, Sourced], after: options.Options, cwd: Path) -> dict[str, Sourced]:
    """Return `found` with the options that are settings, which leave `after`."""
    found = dict(found)
    for name in OWNED:
        if name not in after.whole:
            continue
        value = after.whole.pop(name)
        after.tokens.pop(name)
        names = value if isinstance(value, list) else [value]
        if name == "api_key" and len(names) != 1:
            raise ConfigurationError(f"{PASSTHROUGH}: --api-key has {len(names)} keys; the appliance takes one")
        if name == "served_model_name" and len(names) > 1:
            after.whole[name] = names
        if names[0] is not None:
            parsed = settings.parse(settings.SETTINGS[name], str(names[0]), PASSTHROUGH, cwd)
            found[name] = Sourced(parsed, PASSTHROUGH)
    return found
