"""Strict readers of query strings. An error names the parameter."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Scope

from gateway.http.errors import invalid
from gateway.http.fields import unsupported

_MAX_QUERY_BYTES = 1024


def read_query(scope: Scope, readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The parameters of the query string. `readers`: by name; a reader raises ValueError for an invalid value.

    Raises:
        APIError: 400 naming the parameter that is unknown or has an invalid value.
    """
    query = scope["query_string"]
    if len(query) > _MAX_QUERY_BYTES:
        raise invalid(None, f"The query string is too long. The maximum is {_MAX_QUERY_BYTES} bytes.")
    values = {}
    for name, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in readers:
            raise unsupported(name[:64])
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise invalid(name, f"Invalid '{name}': {error}") from None
    return values


def page_size(most: int) -> Callable[[str], int]:
    """The reader of a page's size, from 1 to `most`."""

    def read(text: str) -> int:
        digits = len(str(most))
        if not (text.isascii() and text.isdecimal() and len(text) <= digits and 1 <= int(text) <= most):
            raise ValueError(f"expected an integer between 1 and {most}.")
        return int(text)

    return read


def page_order(text: str) -> str:
    """The reader of a page's order: `asc` or `desc`."""
    if text not in ("asc", "desc"):
        raise ValueError("supported values are: 'asc' and 'desc'.")
    return text
