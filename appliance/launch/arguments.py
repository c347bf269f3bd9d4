"""vLLM's own arguments: the committed table of their kinds, and reading and writing of values by it.

The table is config/vllm/arguments-0.19.1.json, written from the real vLLM by `python scripts/vllm_tables.py`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from appliance.errors import ConfigurationError, nearest
from appliance.paths import CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VLLM = "0.19.1"
TABLE = CONFIG / "vllm" / f"arguments-{VLLM}.json"

# vLLM's human_readable_int: decimal for small letters, binary for capitals.
_MULTIPLIER = {
    letter: base**power
    for power, letters in enumerate(("kK", "mM", "gG", "tT"), start=1)
    for letter, base in zip(letters, (1000, 1024), strict=True)
}


@dataclass(frozen=True)
class Spec:
    """One argument of vLLM. `kind` is flag, boolean, integer, float, string, json or list.

    A flag can only be set, a boolean has a `--no-` form. `suffixes` allows 32k and 32K, `words` other words than
    numbers, `text` plain text where JSON is usual, `optional` the word None, `repeated` means one option per item.
    """

    name: str
    kind: str
    items: str = "string"
    short: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    suffixes: bool = False
    text: bool = False
    optional: bool = False
    repeated: bool = False

    @property
    def option(self) -> str:
        """Its long form on vLLM's command line."""
        return "--" + self.name.replace("_", "-")


@cache
def table() -> dict[str, Spec]:
    """Return every argument of vLLM 0.19.1's API server, by its name with underscores."""
    records = json.loads(TABLE.read_text(encoding="utf-8"))["arguments"]
    return {name: _spec(name, record) for name, record in records.items()}


def _spec(name: str, record: dict[str, Any]) -> Spec:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    return Spec(name, **fields)


def find(name: str, where: str) -> Spec:
    """Return the argument called `name` (dashes count as underscores); ConfigurationError names the nearest."""
    spec = table().get(name.replace("-", "_"))
    if spec is None:
        hint = nearest(name.replace("-", "_"), table())
        raise ConfigurationError(f'{where}: vLLM {VLLM} has no argument "{name}"{hint}')
    return spec


def parse(spec: Spec, raw: object, source: str) -> Any:  # noqa: ANN401 - of the argument's own kind
    """Return `raw`, text or what YAML made of it, as a value of the argument's kind; None leaves the argument out.

    Raises ConfigurationError naming `source`, the value and what was wanted.
    """
    if raw is None or (spec.optional and raw in ("None", "")):
        return None
    try:
        value = _CONVERTERS[spec.kind](spec, raw)
    except ValueError as error:
        raise ConfigurationError(f"{source}: {spec.option} is {shown(raw)}; wanted {error}") from None
    for item in value if isinstance(value, list) else [value]:
        if spec.choices and item not in spec.choices:
            wanted = ", ".join(map(str, spec.choices))
            hint = nearest(str(item), map(str, spec.choices))
            raise ConfigurationError(f"{source}: {spec.option} is {shown(item)}; wanted one of {wanted}{hint}")
    return value


def _boolean(_spec: Spec, raw: object) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    value = words.get(str(raw).lower())
    if value is None:
        raise ValueError("true or false")
    return value


def _integer(spec: Spec, raw: object) -> int | str:
    text = str(raw).strip()
    if isinstance(raw, str) and text.lower() in spec.words:
        return text.lower()
    if not isinstance(raw, bool | float):
        if re.fullmatch(r"[-+]?\d+", text):
            return int(text)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text) if spec.suffixes else None
        # vLLM allows decimals only with decimal suffixes.
        if match and ("." not in match[1] or match[2].islower()):
            return int(float(match[1]) * _MULTIPLIER[match[2]])
    wanted = "a whole number" + (" such as 32768, 32k or 32K" if spec.suffixes else "")
    raise ValueError(wanted + "".join(f" or {word}" for word in spec.words))


def _float(_spec: Spec, raw: object) -> float:
    try:
        if not isinstance(raw, bool):
            return float(str(raw))
    except ValueError:
        pass
    raise ValueError("a number")


def _string(_spec: Spec, raw: object) -> str:
    # YAML makes numbers of what vLLM takes as text, such as `optimization_level: 2`.
    if isinstance(raw, str | int) and not isinstance(raw, bool):
        return str(raw)
    raise ValueError("text")


def _json(spec: Spec, raw: object) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(raw, dict | list):
        return raw
    try:
        if isinstance(raw, str):
            return json.loads(raw)
    except ValueError:
        if spec.text and not str(raw).lstrip().startswith("{"):
            return raw
    raise ValueError("JSON")


def _list(spec: Spec, raw: object) -> list[Any]:
    if isinstance(raw, str):
        # From the environment: a JSON list, or items between commas.
        raw = _json(spec, raw) if raw.lstrip().startswith("[") else [item.strip() for item in raw.split(",")]
    items = raw if isinstance(raw, list) else [raw]
    convert = _integer if spec.items == "integer" else _string
    return [convert(spec, item) for item in items]


_CONVERTERS = {
    "flag": _boolean,
    "boolean": _boolean,
    "integer": _integer,
    "float": _float,
    "string": _string,
    "json": _json,
    "list": _list,
}


def shown(raw: object) -> str:
    """Return a value in quotes, on one line and cut to a length that a message can have."""
    text = raw if isinstance(raw, str) else json.dumps(raw, default=str)
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return f'"{text if len(text) <= 80 else text[:77] + "..."}"'


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return `lower` with the keys of `upper` set in it, down through mappings; anything else is replaced."""
    merged = dict(lower)
    for key, value in upper.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def render(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - of the argument's own kind
    """Yield the words that give vLLM this value; none for None and for a flag that is not set."""
    spec = table()[name]
    if value is None or (spec.kind == "flag" and not value):
        return
    if spec.kind in ("flag", "boolean"):
        yield spec.option if value else "--no-" + spec.option[2:]
    elif spec.repeated:
        for item in value:
            yield from (spec.option, str(item))
    elif spec.kind == "list":
        yield from (spec.option, *map(str, value))
    else:
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        # argparse would take a value with a dash in front for the next option.
        yield from ([f"{spec.option}={text}"] if text.startswith("-") else [spec.option, text])
