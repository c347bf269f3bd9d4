"""Which keywords of a JSON schema xgrammar 0.2.9 holds an answer to: it compiles the others and ignores them.

Tried keyword by keyword: `tests/vllm_plugin/requests/test_schema_keywords.py` holds this table to the library.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
STRINGS = frozenset({"minLength", "maxLength", "pattern", "format"})
ARRAYS = frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"})
OBJECTS = frozenset(
    {
        "properties",
        "required",
        "additionalProperties",
        "unevaluatedProperties",
        "minProperties",
        "maxProperties",
    }
)
CHOICES = frozenset({"$ref", "const", "enum", "anyOf", "oneOf", "allOf"})
"""One of these decides alone: what stands beside it is ignored."""

IGNORED = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "additionalItems",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "patternProperties",
        "propertyNames",
        "then",
        "uniqueItems",
    }
)

_ASSERTING = NUMBERS | STRINGS | ARRAYS | OBJECTS | CHOICES | IGNORED | {"type"}
_OF_TYPE = {"integer": NUMBERS, "number": NUMBERS, "string": STRINGS, "array": ARRAYS, "object": OBJECTS}
_INFERRED = {"array": {"items", "prefixItems", "unevaluatedItems"}, "object": OBJECTS - {"required"}}
"""Keywords from which the type follows where no `type` is."""

MOST_DEEP = 100

JsonSchema = dict[str, Any]


def unenforced(schema: object) -> str | None:
    """Return a keyword that an answer would not be held to, with where it stands, or None where there is none.

    Keywords that JSON Schema does not know are annotations, and no matter.
    """
    return _first_of(schema, schema, "#", 0)


def _first_of(root: object, schema: object, where: str, depth: int) -> str | None:
    if not isinstance(schema, dict):
        return None
    if depth > MOST_DEEP:
        return f"more than {MOST_DEEP} levels (at {where[:80]})"
    if found := _own(root, schema):
        return f"{found} (at {where})"
    for name, below in _below(schema):
        if found := _first_of(root, below, f"{where}/{name}", depth + 1):
            return found
    return None


def _below(schema: JsonSchema) -> Iterator[tuple[str, object]]:
    """Yield the schemas inside one, and not what only looks like a schema, such as a property of that name."""
    for name in ("properties", "$defs", "definitions"):
        held = schema.get(name)
        if isinstance(held, dict):
            yield from ((f"{name}/{key}", each) for key, each in held.items())
    for name in ("prefixItems", "anyOf", "oneOf", "allOf"):
        held = schema.get(name)
        if isinstance(held, list):
            yield from ((f"{name}/{number}", each) for number, each in enumerate(held))
    for name in ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"):
        yield name, schema.get(name)


def _own(root: object, schema: JsonSchema) -> str | None:
    """Return what a schema itself asserts in vain."""
    asserted = {name for name in schema if name in _ASSERTING}
    if ignored := sorted(name for name in asserted & IGNORED if schema[name] is not False):
        return f'"{ignored[0]}"'
    if chosen := sorted(asserted & CHOICES):
        return _beside(root, schema, chosen[0], asserted - {chosen[0]})
    kinds = _kinds(schema)
    held = set().union(*(_OF_TYPE.get(kind, frozenset()) for kind in kinds))
    if loose := sorted(asserted - {"type"} - held):
        return f'"{loose[0]}" without the "type" that it belongs to'
    if "required" in asserted and (unknown := _unknown(schema)):
        return f'"required" of "{unknown}", which is not in "properties"'
    for first in ("pattern", "format"):
        if first in asserted and (second := sorted(asserted & (STRINGS - {first}))):
            return f'"{second[0]}" beside "{first}"'
    return None


def _beside(root: object, schema: JsonSchema, chosen: str, others: set[str]) -> str | None:
    """Return what a choice makes ignored."""
    # What the choice allows is of that type anyway.
    if others == {"type"} and _all_of_type(root, schema, chosen):
        others = set()
    if others:
        return f'"{min(others)}" beside "{chosen}"'
    value = schema[chosen]
    if chosen == "$ref" and _target(root, value) is None:
        return f'"$ref" to {str(value)[:80]}, which is not a place in the schema'
    if chosen == "allOf" and isinstance(value, list) and len(value) > 1:
        return '"allOf" of more than one'
    if chosen == "oneOf" and isinstance(value, list) and not _exclusive(root, value):
        return '"oneOf" whose choices may hold at once (anyOf is what an answer is held to)'
    return None


def _all_of_type(root: object, schema: JsonSchema, chosen: str) -> bool:
    kinds, value = set(_kinds(schema)), schema[chosen]
    if chosen == "const":
        return _kind_of(value) in kinds
    if chosen == "enum":
        return isinstance(value, list) and {_kind_of(each) for each in value} <= kinds
    branches = [_target(root, value)] if chosen == "$ref" else value
    return isinstance(branches, list) and all(
        isinstance(each, dict) and set(_kinds(_resolved(root, each))) <= kinds and bool(_kinds(_resolved(root, each)))
        for each in branches
    )


def _kinds(schema: JsonSchema) -> tuple[str, ...]:
    kind = schema.get("type")
    if kind is None:
        return tuple(name for name, marks in _INFERRED.items() if marks & schema.keys())
    return tuple(map(str, kind)) if isinstance(kind, list) else (str(kind),)


def _kind_of(value: object) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _unknown(schema: JsonSchema) -> str | None:
    required, properties = schema["required"], schema.get("properties")
    if not isinstance(required, list):
        return None
    return next((str(name) for name in required if not isinstance(properties, dict) or name not in properties), None)


def _exclusive(root: object, branches: list[object]) -> bool:
    found = [_resolved(root, each) for each in branches if isinstance(each, dict)]
    return len(found) == len(branches) and all(_apart(root, one, other) for one, other in combinations(found, 2))


def _apart(root: object, one: JsonSchema, other: JsonSchema) -> bool:
    """Whether no value fits both: they have other types, other constants, or a property that tells them apart."""
    mine, theirs = _constants(one), _constants(other)
    if mine is not None and theirs is not None:
        return not any(each in theirs for each in mine)
    kinds, others = set(_kinds(one)), set(_kinds(other))
    if kinds and others and not kinds & others and not {"integer", "number"} <= kinds | others:
        return True
    shared = set(_required(one)) & set(_required(other))
    for name in shared:
        a, b = (_constants(_resolved(root, each["properties"][name])) for each in (one, other))
        if a is not None and b is not None and not any(each in b for each in a):
            return True
    return False


def _required(schema: JsonSchema) -> list[str]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return []
    return [name for name in required if isinstance(properties.get(name), dict)]


def _constants(schema: JsonSchema) -> list[object] | None:
    if "const" in schema:
        return [schema["const"]]
    held = schema.get("enum")
    return held if isinstance(held, list) else None


def _resolved(root: object, schema: JsonSchema) -> JsonSchema:
    """Follow `$ref` for as long as one stands there and leads somewhere."""
    for _ in range(MOST_DEEP):
        target = _target(root, schema.get("$ref"))
        if not isinstance(target, dict):
            return schema
        schema = target
    return schema


def _target(root: object, reference: object) -> object:
    """Return what `#/a/b` points to in `root`, None where nothing is there or it points elsewhere."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found = root
    for name in reference[2:].split("/") if reference != "#" else ():
        if not isinstance(found, dict):
            return None
        found = found.get(name.replace("~1", "/").replace("~0", "~"))
    return found
