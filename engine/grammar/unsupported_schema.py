"""JSON schema keywords that llguidance accepts but a context-free grammar cannot enforce."""

from collections.abc import Iterator
from typing import Any

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value maps arbitrary names to schemas."""

_LITERAL = ("const", "enum", "default", "examples")
"""Keywords whose value is data, not a schema."""


def unsupported_keyword(schema: Any) -> str | None:
    """`minProperties`, where a schema requires more members than it names; None if the schema has no such keyword.

    A generated member may repeat the name of an earlier one. Parsers keep one of the two, so the object still validates
    otherwise but has fewer members than the grammar counted.
    """
    for subschema in _schemas(schema):
        least = subschema.get("minProperties")
        if isinstance(least, int | float) and least > max(1, _length(subschema.get("required"))):
            return "minProperties"
    return None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas nested in it."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            yield node
            for keyword, value in node.items():
                if keyword in _BY_NAME and isinstance(value, dict):
                    waiting += value.values()
                elif keyword not in _LITERAL:
                    waiting.append(value)
