"""Parts of JSON schemas."""

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
ANY_OBJECT: Schema = {"type": "object"}


def text(about: str = "", **rest: Any) -> Schema:
    return described({"type": "string", **rest}, about)


def choice(*values: str, about: str = "") -> Schema:
    return described({"type": "string", "enum": list(values)}, about)


def integer(low: int | None = None, high: int | None = None, about: str = "") -> Schema:
    bounds = {name: value for name, value in (("minimum", low), ("maximum", high)) if value is not None}
    return described({"type": "integer", **bounds}, about)


def number(low: float | None = None, high: float | None = None, about: str = "") -> Schema:
    bounds = {name: value for name, value in (("minimum", low), ("maximum", high)) if value is not None}
    return described({"type": "number", **bounds}, about)


def boolean(about: str = "") -> Schema:
    return described({"type": "boolean"}, about)


def listed(items: Schema, low: int = 0, high: int | None = None, about: str = "") -> Schema:
    bounds: Schema = {} if high is None else {"maxItems": high}
    return described({"type": "array", "items": items, "minItems": low, **bounds}, about)


def one_of(*schemas: Schema, about: str = "") -> Schema:
    return described({"anyOf": list(schemas)}, about)


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def described(schema: Schema, about: str) -> Schema:
    return schema | {"description": about} if about else schema


def answered(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """A closed object of an answer."""
    return _object(required, dict(optional or {}))


def asked(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """A closed object of a request: a member that is not required may be null, which counts as absent."""
    return _object(required, {name: nullable(schema) for name, schema in (optional or {}).items()})


def refused(neutral_values: Mapping[str, Sequence[object]]) -> dict[str, Schema]:
    """Parameters that the server does not support, each with its accepted values, which ask for nothing."""
    return {
        name: {"enum": list(values), "description": "Not supported: only these values, or null."}
        if values
        else {**NULL, "description": "Not supported."}
        for name, values in neutral_values.items()
    }


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema]) -> Schema:
    properties = {**required, **optional}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
