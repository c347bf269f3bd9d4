"""The table of keywords, held to xgrammar itself: what passes is enforced, what is ignored is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.vllm_plugin.requests.schema_keywords import unenforced

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
TWO = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}
TOOL = {
    "properties": {"name": {"type": "string", "enum": ["f"]}, "parameters": TWO},
    "required": ["name", "parameters"],
}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": INTEGER}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "bark": TEXT}, "required": ["kind"]}

ENFORCED: dict[str, tuple[Any, str, str]] = {
    "enum": ({"enum": [1, "a"], "description": "of two"}, "1", "2"),
    "const": ({"const": 5}, "5", "6"),
    "type and enum": ({"type": "string", "enum": ["a"]}, '"a"', '"b"'),
    "types": ({"type": ["integer", "null"], "minimum": 5}, "null", "4"),
    "bounds": ({"type": "number", "exclusiveMinimum": 0.5, "maximum": 9}, "0.6", "0.5"),
    "multipleOf": ({"type": "integer", "multipleOf": 5, "minimum": 7}, "10", "5"),
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 3}, '"ab"', '"a"'),
    "pattern": ({"type": "string", "pattern": "^a+$"}, '"aa"', '"b"'),
    "format": ({"type": "string", "format": "date"}, '"2020-01-01"', '"x"'),
    "items": ({"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3}, "[1, 2]", "[1]"),
    "items of no type": ({"items": INTEGER, "minItems": 2}, "[1, 2]", "[1]"),
    "prefixItems": ({"type": "array", "prefixItems": [INTEGER], "items": False}, "[1]", "[1, 2]"),
    "required": (TWO | {"required": ["a"]}, '{"a": 1}', "{}"),
    "additionalProperties": (TWO | {"additionalProperties": False}, '{"a": 1}', '{"c": 1}'),
    "maxProperties": (TWO | {"maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 2}'),
    "anyOf": ({"anyOf": [INTEGER, {"type": "null"}]}, "1", '"a"'),
    "oneOf by type": ({"oneOf": [INTEGER, TEXT]}, "1", "null"),
    "oneOf by constant": ({"oneOf": [CAT, DOG]}, '{"kind": "cat", "lives": 9}', '{"kind": "cat", "bark": "b"}'),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": INTEGER}}, "1", '"a"'),
    "a property called not": ({"type": "object", "properties": {"not": INTEGER}}, '{"not": 1}', '{"not": "a"}'),
    "vLLM's own for tools": (
        {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": [TOOL]}},
        '[{"name": "f", "parameters": {"a": 1}}]',
        '[{"name": "g", "parameters": {"a": 1}}]',
    ),
}
IGNORED: dict[str, tuple[Any, str, str]] = {
    '"not"': (INTEGER | {"not": {"const": 1}}, "1", "#"),
    '"if"': (INTEGER | {"if": {"const": 1}, "then": False}, "1", "#"),
    '"uniqueItems"': (
        {"properties": {"x": {"items": INTEGER, "uniqueItems": True}}},
        '{"x": [1, 1]}',
        "#/properties/x",
    ),
    '"dependentRequired"': (TWO | {"dependentRequired": {"a": ["b"]}}, '{"a": 1}', "#"),
    '"dependencies"': (TWO | {"dependencies": {"a": ["b"]}}, '{"a": 1}', "#"),
    '"allOf" of more than one': ({"allOf": [INTEGER | {"minimum": 0}, INTEGER | {"maximum": 9}]}, "11", "#"),
    '"oneOf" whose choices': ({"oneOf": [INTEGER | {"minimum": 0}, INTEGER | {"maximum": 9}]}, "5", "#"),
    '"minimum" beside "$ref"': ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": INTEGER}}, "1", "#"),
    '"type" beside "enum"': ({"type": "string", "enum": ["a", 1]}, "1", "#"),
    '"properties" beside "anyOf"': (TWO | {"anyOf": [{"required": ["a"]}]}, "{}", "#"),
    '"minimum" without the "type"': ({"minimum": 5}, "4", "#"),
    '"minItems" without the "type"': ({"minItems": 2}, "[1]", "#"),
    '"minLength" beside "pattern"': ({"type": "string", "pattern": "^a+$", "minLength": 3}, '"a"', "#"),
    '"required" of "c"': (TWO | {"required": ["c"]}, '{"a": 1}', "#"),
    '"$ref" to https://e.org/a': ({"$ref": "https://e.org/a"}, "1", "#"),
}


def accepted(schema: object, answer: str) -> bool:
    xgrammar = pytest.importorskip("xgrammar")
    testing = pytest.importorskip("xgrammar.testing")
    return bool(testing._is_grammar_accept_string(xgrammar.Grammar.from_json_schema(json.dumps(schema)), answer))


@pytest.mark.parametrize("name", ENFORCED)
def test_what_passes_is_enforced(name: str) -> None:
    schema, good, bad = ENFORCED[name]
    assert unenforced(schema) is None
    assert accepted(schema, good)
    assert not accepted(schema, bad)


@pytest.mark.parametrize("name", IGNORED)
def test_what_the_library_ignores_is_named_with_its_place(name: str) -> None:
    schema, wrong, where = IGNORED[name]
    found = unenforced(schema)
    assert found is not None
    assert found.startswith(name)
    assert found.endswith(f"(at {where})")
    assert accepted(schema, wrong)


def test_a_schema_without_end_is_refused_and_no_schema_is_none_of_ours() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    assert "levels" in (unenforced(deep) or "")
    nothing: tuple[object, ...] = (True, "x", None, [], 3)
    assert [unenforced(each) for each in nothing] == [None] * 5
    assert "which is not a place" in (unenforced({"$ref": "#/$defs/none"}) or "")
    # One that refers to itself ends, too.
    assert unenforced({"$ref": "#"}) is None
    assert unenforced({"anyOf": [{"$ref": "#"}, {"type": "null"}], "type": "null"}) is None
