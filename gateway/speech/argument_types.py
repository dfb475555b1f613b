"""The JSON types that a tool's schema permits for an argument, and the value of an argument that is written as text."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 8
"""Nesting of alternatives and references that is followed; a reference may refer to itself."""
_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Spellings of templates that print Python's values."""


class ArgumentTypes:
    """The types of one tool's arguments. `schema`: that of its arguments object, of any content."""

    def __init__(self, schema: object) -> None:
        self._schema = schema if isinstance(schema, Mapping) else {}

    def of(self, key: str) -> frozenset[str]:
        """The names of JSON Schema's types that the argument may have; empty if nothing is declared."""
        properties = self._schema.get("properties")
        declared = properties.get(key) if isinstance(properties, Mapping) else None
        return frozenset(self._types(declared, _MAX_DEPTH))

    def json_of(self, key: str, written: str) -> str:
        """The argument as JSON: what is written if that is JSON of a declared type, else text."""
        types = self.of(key)
        value = written.strip()
        if types and not types <= {"string"}:
            value = _WORDS.get(value, value)
        if types != {"string"} and _fits(value, types):
            return value
        return json.dumps(written, ensure_ascii=False)

    def _types(self, schema: object, depth: int) -> Iterator[str]:
        if not isinstance(schema, Mapping) or not depth:
            return
        stated = schema.get("type")
        if isinstance(stated, str | list):
            yield from [stated] if isinstance(stated, str) else (each for each in stated if isinstance(each, str))
            return
        values = schema.get("enum")
        for value in [schema["const"]] if "const" in schema else values if isinstance(values, list) else ():
            yield _type_of(value)
        for keyword in _ALTERNATIVES:
            each = schema.get(keyword)
            for alternative in each if isinstance(each, list) else ():
                yield from self._types(alternative, depth - 1)
        yield from self._types(self._referred(schema.get("$ref")), depth - 1)

    def _referred(self, reference: object) -> object:
        """The schema at a local reference, as `#/$defs/City`; None if there is none."""
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        found: object = self._schema
        for part in reference[2:].split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found


def _fits(text: str, types: frozenset[str]) -> bool:
    """Whether the text is JSON of one of the types; of any, if there are none."""
    try:
        value = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return True  # by JSON Schema, 1.0 is an integer
    kind = _type_of(value)
    return not types or kind in types or (kind == "integer" and "number" in types)


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _refused(constant: str) -> Any:
    raise ValueError(constant)
