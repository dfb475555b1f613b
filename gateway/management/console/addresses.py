"""Addresses within the console."""

from collections.abc import Mapping
from urllib.parse import urlencode

from gateway.management.console.screens import PREFIX


def address(path: str, query: Mapping[str, str] | None = None) -> str:
    """Of a path below `PREFIX`, with those of the query's parameters that have a text."""
    given = {name: text for name, text in (query or {}).items() if text}
    return PREFIX + path + (f"?{urlencode(given)}" if given else "")


def next_page(path: str, query: Mapping[str, str], cursor: str | None) -> str | None:
    """Of the page after this one of a list, with the same filters; None: this is the last."""
    return None if cursor is None else address(path, {**query, "cursor": cursor})
