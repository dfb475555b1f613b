"""An answer as a message of its conversation."""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.speech.pieces import Call, ParsedMessage

_MAX_LEVELS = 64
"""Maximum nesting of arguments, equal to the bound on tool calls in a request."""


def as_message(answer: ParsedMessage) -> dict[str, Any]:
    """The answer in OpenAI's format, with arguments as objects, which chat templates read.

    Calls that were cut off are dropped, as no result can follow them. Reasoning is kept only with calls: the model
    needs it until the calls have results.
    """
    calls = [each for call in answer.calls if (each := _call(call)) is not None]
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or ""}
    if calls:
        message |= {"content": answer.text, "tool_calls": calls}
        if answer.reasoning is not None:
            message["reasoning_content"] = answer.reasoning
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
