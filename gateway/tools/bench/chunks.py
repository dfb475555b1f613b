"""Parses an event of a streamed chat or completion, from any server.

Servers differ: the first chunk has only the role, or text already; usage comes with the last text, in a chunk with
empty choices, or never; errors are an object, a string, or an event without choices.
"""

from dataclasses import dataclass
from typing import Any

import orjson

DONE = b"[DONE]"

_ANSWER_FIELDS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


class Malformed(Exception):
    """The event is not a JSON object."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`answers`: it contains a part of the answer. `ends`: it has a finish reason. `error`: the server's error code,
    type or message."""

    answers: bool = False
    ends: bool = False
    error: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def read_chunk(data: bytes) -> Chunk:
    """
    Raises:
        Malformed: not a JSON object.
    """
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Malformed from None
    if not isinstance(event, dict):
        raise Malformed
    if error := event.get("error"):
        return Chunk(error=error_code(error))
    choices = [each for each in _list(event.get("choices")) if isinstance(each, dict)]
    usage = event.get("usage")
    if not isinstance(usage, dict):
        usage = {}
    return Chunk(
        answers=any(map(_answers, choices)),
        ends=any(choice.get("finish_reason") for choice in choices),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
    )


def error_code(error: Any) -> str:
    """A short key for an error of any form, by which errors are counted."""
    if isinstance(error, dict):
        named = (error.get("code"), error.get("type"), error.get("message"))
        error = next((each for each in named if isinstance(each, str) and each), "error")
    return " ".join(str(error).split())[:60]


def _answers(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(name) for name in _ANSWER_FIELDS)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
