"""The JSON types that a tool's schema permits for an argument, and the value of an argument that is written as text."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
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
        return frozenset(self._types(declared))

    def json_of(self, key: str, written: str) -> str:
        """The argument as JSON: what is written if that is JSON of a declared type, else text."""
        types = self.of(key)
        value = written.strip()
        if types and not types <= {"string"}:
            value = _WORDS.get(value, value)
        if types != {"string"} and _fits(value, types):
            return value
        return json.dumps(written, ensure_ascii=False)

    def _types(self, schema: object) -> Iterator[str]:
        """The types of a schema and of its alternatives. Each is read once, as they may refer to one another."""
        left, read = [schema], set[int]()
        while left:
            each = left.pop()
            if not isinstance(each, Mapping) or id(each) in read:
                continue
            read.add(id(each))
            stated = each.get("type")
            if isinstance(stated, str | list):
                yield from [stated] if isinstance(stated, str) else (name for name in stated if isinstance(name, str))
                continue
            values = [each["const"]] if "const" in each else each.get("enum")
            yield from map(_type_of, values if isinstance(values, list) else ())
            for keyword in _ALTERNATIVES:
                alternatives = each.get(keyword)
                left += alternatives if isinstance(alternatives, list) else ()
            left.append(self._referred(each.get("$ref")))

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
