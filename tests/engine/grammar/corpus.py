"""Schemas of every shape that callers write, those that can be enforced and those that cannot."""

import json
from typing import Any

import jsonschema

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

ENFORCED: dict[str, dict[str, Any]] = {
    "anything": {},
    "object": {"type": "object"},
    "closed object": PERSON,
    "open object": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "additionalProperties": {"type": "boolean"},
    },
    "optional members": {
        "type": "object",
        "properties": {key: {"type": "boolean"} for key in "abcd"},
        "required": ["c"],
        "additionalProperties": False,
    },
    "required and not described": {"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}},
    "nested": {
        "type": "object",
        "properties": {
            "who": PERSON,
            "more": {"type": "array", "items": {"type": "array", "items": PERSON, "maxItems": 2}, "maxItems": 2},
        },
        "required": ["who", "more"],
        "additionalProperties": False,
    },
    "members by pattern": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "enum of all types": {"enum": [1, 2.5, "two", None, True, [1, "a"], {"b": {"c": 3}}]},
    "const": {"const": {"ü": ["\n", '"', "\\", "\u0001", "漢字", "🙂"]}},
    "array bounds": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "empty array": {"type": "array", "maxItems": 0},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"enum": ["a"]}], "items": False, "minItems": 2},
    "tuple and more": {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "boolean"}, "maxItems": 3},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern inside": {"type": "string", "pattern": "[0-9]{2}", "maxLength": 6},
    "unicode pattern": {"type": "string", "pattern": "^[äöü]{1,3}$"},
    "escaped pattern": {"type": "string", "pattern": '^["\\\\\\n]{2}$'},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 5},
    **{
        f"format {name}": {"type": "string", "format": name}
        for name in ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "duration")
    },
    "integer bounds": {"type": "integer", "minimum": -17, "exclusiveMaximum": 203},
    "number bounds": {"type": "number", "exclusiveMinimum": -0.5, "maximum": 1.25},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "ref": {"$defs": {"p": PERSON}, "type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 1, "maxItems": 2},
    "ref in definitions": {"definitions": {"b": {"type": "boolean"}}, "$ref": "#/definitions/b"},
    "recursive": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"value": {"type": "boolean"}, "left": {"$ref": "#/$defs/tree"}},
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "anyOf": {"anyOf": [{"type": "integer"}, PERSON, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    "oneOf apart": {"oneOf": [{"type": "boolean"}, {"type": "null"}, {"type": "object", "maxProperties": 0}]},
    "oneOf by tag": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, kind: {"type": "boolean"}},
                "required": ["kind", kind],
                "additionalProperties": False,
            }
            for kind in ("cat", "dog")
        ]
    },
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "types": {"type": ["boolean", "null", "integer"]},
    "annotated": {"type": "boolean", "title": "t", "description": "d", "default": True, "examples": [1]},
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"const": 1}, {"const": 2}],
    },
    "fewest members": {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1},
    "fewest members, all named": PERSON | {"minProperties": 2},
    "a member of that name": {
        "type": "object",
        "properties": {"minProperties": {"const": 5}},
        "additionalProperties": False,
    },
    "a literal of that name": {"const": {"minProperties": 5}},
    "most members": {"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 2},
}

REFUSED: dict[str, dict[str, Any]] = {
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "null"}},
    "propertyNames": {"propertyNames": {"maxLength": 3}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {}}},
    "unevaluatedProperties": {"unevaluatedProperties": False},
    "unevaluatedItems": {"unevaluatedItems": False},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "format": {"type": "string", "format": "colour"},
    "minProperties": {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 2},
}
"""By the keyword that the refusal has to name."""


def require_valid(text: str, schema: dict[str, Any]) -> None:
    value = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(value)
