"""What is written after `--`: read as vLLM reads it, put in order, and kept as it was given."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.errors import ConfigurationError, nearest
from appliance.launch.arguments import VLLM, Spec, merge, parse, shown, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?|-?\.\d+")


@dataclass(frozen=True)
class Given:
    """One argument as it was written after `--`: its tokens, and the value that vLLM makes of them.

    `path` holds the keys of a dotted form: `--compilation-config.mode 3` has the path ("mode",).
    """

    spec: Spec
    value: Any
    tokens: tuple[str, ...]
    path: tuple[str, ...] = ()


def read_options(tokens: Sequence[str], source: str) -> list[Given]:
    """Read what followed `--` as vLLM would. Raises ConfigurationError for what vLLM would refuse.

    Abbreviations, which argparse would accept, are refused with the full name: a typing slip is not a wish.
    """
    given = []
    queue = list(tokens)
    while queue:
        word = queue.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            raise ConfigurationError(
                f"{source}: {shown(word)} belongs to no option; options start with a dash, the model goes into --model"
            )
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-O\d", name):
            name, equals, value = "-O", "=", name[2:]
        base, *path = name.split(".")
        spec, negated = _named(base, source)
        if path:
            given.append(_dotted(spec, path, [value] if equals else _take(queue, spec, source), word, source))
        elif spec.kind in ("flag", "boolean"):
            if equals:
                raise ConfigurationError(f"{source}: {spec.option} takes no value; {shown(word)} gives one")
            given.append(Given(spec, not negated, (word,)))
        else:
            values = [value] if equals else _take(queue, spec, source)
            whole: object = values if spec.kind == "list" else values[0]
            if spec.kind == "list" and spec.optional and values in ([""], ["None"]):
                whole = None
            tokens_used = (word,) if equals else (word, *values)
            given.append(Given(spec, parse(spec, whole, source), tokens_used))
    return given


def _named(base: str, source: str) -> tuple[Spec, bool]:
    """Return the argument that an option's word names, and whether it is the `--no-` form."""
    if not base.startswith("--"):
        for spec in table().values():
            if base in spec.short:
                return spec, False
        known = [short for spec in table().values() for short in spec.short]
        raise ConfigurationError(f"{source}: vLLM {VLLM} has no option {shown(base)}{nearest(base, known)}")
    name = base[2:].replace("-", "_")
    bare = table().get(name.removeprefix("no_"))
    if name not in table() and bare is not None and bare.kind == "boolean":
        return bare, True
    known = [spec.option for spec in table().values()]
    if name not in table():
        raise ConfigurationError(f"{source}: vLLM {VLLM} has no option {shown(base)}{nearest('--' + base[2:], known)}")
    return table()[name], False


def _take(queue: list[str], spec: Spec, source: str) -> list[str]:
    """Remove and return the words that belong to an option; one, or all up to the next option for a list."""
    many = spec.kind == "list" and not spec.repeated
    values: list[str] = []
    while queue and not _is_option(queue[0]) and (many or not values):
        values.append(queue.pop(0))
    if not values:
        raise ConfigurationError(f"{source}: {spec.option} wants a value and got none")
    return values


def _is_option(word: str) -> bool:
    """Whether argparse would take the word for an option: a dash in front, no number, no space in it."""
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word) and " " not in word


def _dotted(spec: Spec, path: list[str], values: list[str], word: str, source: str) -> Given:
    if spec.kind != "json" or not all(key.rstrip("+") for key in path):
        raise ConfigurationError(f"{source}: {shown(word)} sets a key of {spec.option}, which has no keys")
    value: Any
    if path[-1].endswith("+"):
        path, value = [*path[:-1], path[-1][:-1]], [_scalar(item) for item in values[0].split(",")]
    else:
        value = _scalar(values[0])
    tokens = (word,) if "=" in word else (word, values[0])
    return Given(spec, value, tokens, tuple(path))


def _scalar(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass
class Options:
    """What followed `--`, put in order: whole values by name, single keys of JSON arguments, and the tokens."""

    whole: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: dict[str, tuple[str, ...]] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()
    """Names that were given more than once; as in vLLM the last one counts."""


def settle(given: Iterable[Given]) -> Options:
    """Put options in order. Of two that set the same argument or key, the last counts; repeatable ones add up."""
    options = Options()
    again: list[str] = []
    for item in given:
        name = item.spec.name
        if item.path:
            nested = item.value
            for key in reversed(item.path):
                nested = {key: nested}
            options.keys[name] = merge(options.keys.get(name, {}), nested)
            options.tokens[name] = (*options.tokens.get(name, ()), *item.tokens)
        elif item.spec.repeated:
            options.whole[name] = [*options.whole.get(name, ()), *item.value]
            options.tokens[name] = (*options.tokens.get(name, ()), *item.tokens)
        else:
            if name in options.whole:
                again.append(name)
            options.whole[name] = item.value
            options.tokens[name] = item.tokens
    options.repeated = tuple(dict.fromkeys(again))
    return options
