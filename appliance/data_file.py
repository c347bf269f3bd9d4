"""Files of data that people write: read strictly, refused in one line with the key, the value and what was wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from appliance.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pydantic_core import ErrorDetails

M = TypeVar("M", bound=BaseModel)


def read(path: Path, model: type[M], what: str) -> M:
    """Return the YAML of `path` as a `model`; `what` says in words what it ought to hold: `a profile`.

    Raises ConfigurationError for whatever is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); wanted {what} in YAML") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 text (byte {error.start}); wanted {what} in YAML") from error
    try:
        # _Loader is a safe loader that also refuses a key given twice.
        record = yaml.load(text, _Loader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: {_yaml_problem(error)}") from error
    if not isinstance(record, dict):
        raise ConfigurationError(f"{path}: holds {_seen(record)}; wanted {what}, a mapping of keys")
    try:
        return model.model_validate(record)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {problem(error, model)}") from error


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen while the program runs
    """Of a key that stands twice, YAML's own loaders silently keep the last."""


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:  # noqa: ANN401 - the base is chosen at run time
    seen: set[object] = set()
    for key, _ in node.value:
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f'key "{key.value}" stands twice', problem_mark=key.start_mark)
        seen.add(key.value)
    found: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {what}" if mark else f"{what}; wanted YAML"


def problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first problem in one line: key path, what was seen, what was wanted, the nearest valid key."""
    # A misspelt key shows twice, as unknown and as missing; the unknown one tells more.
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    first, more = details[0], len(details) - 1
    rest = f" (and {more} more)" if more else ""
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        *parents, key = first["loc"]
        known = _keys(parents, model)
        hint = nearest(str(key), known) or f"; known here: {', '.join(known)}"
        return f"{where}: no such key{hint}{rest}"
    if first["type"] == "missing":
        return f"{where}: missing{rest}"
    if first["type"] == "value_error":
        return f"{where + ': ' if where else ''}{_wanted(first)}{rest}"
    return f"{where + ': ' if where else ''}is {_seen(first['input'])}; wanted {_wanted(first)}{rest}"


def _wanted(detail: ErrorDetails) -> str:
    message = detail["msg"]
    for opening in ("Input should be ", "String should ", "Value error, "):
        message = message.removeprefix(opening)
    return message


def _seen(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(path: Iterable[object], model: type[BaseModel]) -> list[str]:
    """Return the keys that `model` knows at `path`."""
    for step in path:
        field = model.model_fields.get(str(step))
        # A step that is no field is the key of a mapping of models, which its field led to already.
        inner = _model(field.annotation) if field else None
        model = inner or model
    return list(model.model_fields)


def _model(annotation: Any) -> type[BaseModel] | None:  # noqa: ANN401 - any type annotation
    if get_origin(annotation) is None:
        return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return next((found for found in map(_model, get_args(annotation)) if found), None)
