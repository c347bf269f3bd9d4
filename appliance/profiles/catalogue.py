"""The profiles that are shipped, and reading of any profile file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from appliance.acceleration.routes import ROUTES
from appliance.errors import ConfigurationError, nearest
from appliance.paths import PROFILES
from appliance.profiles.schema import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import ErrorDetails


def names() -> tuple[str, ...]:
    """The names of the shipped profiles, in alphabetical order."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def load(name: str) -> Profile:
    """Return the shipped profile called `name`, or the one in the YAML file that `name` is a path to.

    Raises ConfigurationError: an unknown profile with the nearest name, a bad file with its key, value and want.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        return read(Path(name))
    known = names()
    if name not in known:
        raise ConfigurationError(
            f'no profile "{name}"{nearest(name, known)} (shipped: {", ".join(known)}; a file of yours is given by '
            "its path)"
        )
    profile = read(PROFILES / f"{name}.yaml")
    if profile.name != name:
        raise ConfigurationError(f'{PROFILES / name}.yaml: name is "{profile.name}"; wanted the file\'s name, "{name}"')
    return profile


def load_all() -> tuple[Profile, ...]:
    """Return every shipped profile, the most preferred first."""
    return tuple(sorted(map(load, names()), key=lambda profile: (profile.rank, profile.name)))


def read(path: Path) -> Profile:
    """Return the profile in `path`. Raises ConfigurationError in one line for whatever is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); wanted a profile in YAML") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 text (byte {error.start}); wanted a profile in YAML") from error
    try:
        # _Loader is a safe loader that also refuses a key given twice.
        record = yaml.load(text, _Loader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: {_yaml_problem(error)}") from error
    if not isinstance(record, dict):
        raise ConfigurationError(f"{path}: holds {_seen(record)}; wanted a profile, a mapping of keys")
    try:
        profile = Profile.model_validate(record)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {_problem(error)}") from error
    for route in profile.expected_acceleration:
        if route not in ROUTES:
            raise ConfigurationError(f'{path}: expected_acceleration has no route "{route}"{nearest(route, ROUTES)}')
    return profile


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


def _problem(error: ValidationError) -> str:
    """Return the first problem in one line: key path, what was seen, what was wanted, the nearest valid key."""
    # A misspelt key shows twice, as unknown and as missing; the unknown one tells more.
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    first, more = details[0], len(details) - 1
    rest = f" (and {more} more)" if more else ""
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        *parents, key = first["loc"]
        known = _keys(parents)
        hint = nearest(str(key), known) or f"; known here: {', '.join(known)}"
        return f"{where}: no such key{hint}{rest}"
    if first["type"] == "missing":
        return f"{where}: missing{rest}"
    return f"{where}: is {_seen(first['input'])}; wanted {_wanted(first)}{rest}"


def _wanted(detail: ErrorDetails) -> str:
    message = detail["msg"]
    for opening in ("Input should be ", "String should ", "Value error, "):
        message = message.removeprefix(opening)
    return message


def _seen(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(path: Iterable[object]) -> list[str]:
    """Return the keys that the schema knows at `path`."""
    model: type[BaseModel] = Profile
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
