"""An answer as a message of the conversation that goes on behind it."""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.speech.pieces import Call, ParsedMessage

_MAX_LEVELS = 64
"""Of arguments; a client that says them again may not nest them deeper."""


def as_message(spoken: ParsedMessage) -> dict[str, Any]:
    """In OpenAI's form, with arguments as objects, as chat templates take them.

    A call that was cut short is left out, as no result can follow it. What the model said to itself is of use as long
    as its calls are under way, so it stays with those alone.
    """
    calls = [each for call in spoken.calls if (each := _call(call)) is not None]
    message: dict[str, Any] = {"role": "assistant", "content": spoken.text or ""}
    if calls:
        message |= {"content": spoken.text, "tool_calls": calls}
        if spoken.reasoning is not None:
            message["reasoning_content"] = spoken.reasoning
    return message


def _call(call: Call) -> Mapping[str, Any] | None:
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(arguments, dict) or _levels(arguments) > _MAX_LEVELS:
        return None
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _levels(value: Any) -> int:
    levels, layer = 0, [value]
    while layer:
        levels += 1
        layer = [item for each in layer for item in _containers(each)]
    return levels


def _containers(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value
    return [child for child in children if isinstance(child, dict | list)]
