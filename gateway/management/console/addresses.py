"""Addresses within the console."""

from collections.abc import Mapping
from urllib.parse import urlencode

from gateway.management.console.screens import PREFIX


def address(path: str, query: Mapping[str, str] | None = None) -> str:
    """The address of a path below `PREFIX`, with the query parameters that have a text."""
    given = {name: text for name, text in (query or {}).items() if text}
    return PREFIX + path + (f"?{urlencode(given)}" if given else "")


def next_page(path: str, query: Mapping[str, str], cursor: str | None) -> str | None:
    """The address of a list's next page, with the same filters; None on the last page."""
    return None if cursor is None else address(path, {**query, "cursor": cursor})
