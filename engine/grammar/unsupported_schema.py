"""What a context-free grammar of JSON cannot see, so that the grammar library must not be asked for it."""

from collections.abc import Iterator
from typing import Any

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value has a schema for each name, whatever the name is."""

_LITERAL = ("const", "enum", "default", "examples")
"""Keywords whose value is no schema."""


def unsupported_keyword(schema: Any) -> str | None:
    """A keyword that would be counted wrong: `minProperties`, where members may be made up to reach it.

    A member that is made up may have the name of one before it. Parsers keep one of the two, which validates against
    the same schema, but does not count twice.
    """
    for each in _schemas(schema):
        least = each.get("minProperties")
        if isinstance(least, int | float) and least > max(1, _length(each.get("required"))):
            return "minProperties"
    return None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """It and all those in it."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            yield each
            for keyword, value in each.items():
                if keyword in _BY_NAME and isinstance(value, dict):
                    waiting += value.values()
                elif keyword not in _LITERAL:
                    waiting.append(value)
