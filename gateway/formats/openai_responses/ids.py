"""Ids of responses and of their items: an item's leads to the response that it is of."""

import re

PREFIX = "resp_"
INPUT, OUTPUT = "i", "o"
"""Of which of a response's items an id speaks."""

_RESPONSE = re.compile(r"resp_[0-9a-f]{32}")
_ITEM = re.compile(r"[a-z]{2,3}_([0-9a-f]{32})[io][0-9a-f]{4}")


def is_response_id(text: str) -> bool:
    return _RESPONSE.fullmatch(text) is not None


def item_id(response_id: str, prefix: str, part: str, index: int) -> str:
    """The id of the item with this number in the response's input or output."""
    return f"{prefix}_{response_id.removeprefix(PREFIX)}{part}{index:04x}"


def response_of(item: str) -> str | None:
    """None: the item is none of ours."""
    match = _ITEM.fullmatch(item)
    return None if match is None else f"{PREFIX}{match[1]}"
