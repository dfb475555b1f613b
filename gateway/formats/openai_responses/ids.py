"""Ids of responses and of their items. An item's id contains its response's id."""

import re

PREFIX = "resp_"
INPUT, OUTPUT = "i", "o"
"""Part of a response that an item belongs to."""

_RESPONSE = re.compile(r"resp_[0-9a-f]{32}")
_ITEM = re.compile(r"[a-z]{2,3}_([0-9a-f]{32})[io][0-9a-f]{4}")


def is_response_id(text: str) -> bool:
    return _RESPONSE.fullmatch(text) is not None


def item_id(response_id: str, prefix: str, part: str, index: int) -> str:
    """The id of item `index` of the response's input or output (`part`)."""
    return f"{prefix}_{response_id.removeprefix(PREFIX)}{part}{index:04x}"


def response_of(item: str) -> str | None:
    """The id of an item's response; None for an item id of another form."""
    match = _ITEM.fullmatch(item)
    return None if match is None else f"{PREFIX}{match[1]}"
