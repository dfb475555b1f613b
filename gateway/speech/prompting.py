"""Puts tools and earlier tool calls into the prompt: by the chat template, or as text if it does not support tools.

The text uses the Hermes format, which the tool call parser of such models reads.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from engine.text.dialect import CallForm, Dialect
from gateway.speech.tools import Tool

Message = Mapping[str, Any]

_SYSTEM_ROLES = ("system", "developer")
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_DECLARATION = """You may call tools to answer the user. These are the tools, with JSON schemas of their arguments:
<tools>
{tools}
</tools>
To call a tool, write a JSON object with its name and its arguments between tags:
<tool_call>
{{"name": "the tool's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>"""


def shown(
    messages: Sequence[Message], tools: Sequence[Tool], dialect: Dialect
) -> tuple[Sequence[Message], dict[str, Any]]:
    """Messages in the form of the model's chat template, and the template variables for tools."""
    if dialect.knows_tools:
        if dialect.call_form is CallForm.MISTRAL:
            messages = [_with_short_ids(message) for message in messages]
        if not dialect.takes_parallel_calls:
            messages = list(_one_by_one(messages))
        return messages, {"tools": [_declared(tool) for tool in tools]} if tools else {}
    if tools or any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
        messages = list(_as_text(messages))
    if tools:
        text = _DECLARATION.format(tools="\n".join(_json(_declared(tool)) for tool in tools))
        messages = _with_instruction(messages, text, dialect)
    return messages, {}


def _declared(tool: Tool) -> dict[str, Any]:
    """The tool in OpenAI's format. Templates print the description, so it is never missing."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _as_text(messages: Sequence[Message]) -> Iterator[Message]:
    """Calls become assistant text, and consecutive results one user message."""
    responses: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            responses.append(f"<tool_response>\n{_text_of(message)}\n</tool_response>")
            continue
        if responses:
            yield {"role": "user", "content": "\n".join(responses)}
            responses = []
        calls = message.get("tool_calls")
        if calls:
            texts = [text] if (text := _text_of(message)) else []
            written = [f"<tool_call>\n{_json(call['function'])}\n</tool_call>" for call in calls]
            message = {"role": "assistant", "content": "\n".join(texts + written)}
        yield message
    if responses:
        yield {"role": "user", "content": "\n".join(responses)}


def _one_by_one(messages: Sequence[Message]) -> Iterator[Message]:
    """Each call in its own message, followed by its results."""
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results = list(takewhile(lambda each: each["role"] == "tool", messages[position:]))
        position += len(results)
        for number, call in enumerate(calls):
            yield {**message, "content": "" if number else message["content"], "tool_calls": [call]}
            yield from (each for each in results if each["tool_call_id"] == call["id"])
        ids = {call["id"] for call in calls}
        yield from (each for each in results if each["tool_call_id"] not in ids)


def _with_instruction(messages: Sequence[Message], text: str, dialect: Dialect) -> list[Message]:
    """Append the text to the system prompt, or add one. Without system prompts, prepend it to the user's message."""
    place = next((i for i, message in enumerate(messages) if message["role"] in _SYSTEM_ROLES), None)
    if place is not None:
        return [*messages[:place], _with_content(messages[place], "{0}\n\n{1}", text), *messages[place + 1 :]]
    if dialect.takes_system:
        return [{"role": "system", "content": text}, *messages]
    place = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if place is None:
        return [{"role": "user", "content": text}, *messages]
    return [*messages[:place], _with_content(messages[place], "{1}\n\n{0}", text), *messages[place + 1 :]]


def _with_content(message: Message, form: str, text: str) -> Message:
    return {**message, "content": form.format(_text_of(message), text)}


def _text_of(message: Message) -> str:
    content = message.get("content")
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def _with_short_ids(message: Message) -> Message:
    """Shorten call ids: Mistral's templates require nine letters and digits."""
    changed: dict[str, Any] = {}
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    if message.get("tool_calls"):
        changed["tool_calls"] = [call | {"id": _short_id(call["id"])} for call in message["tool_calls"]]
    return {**message, **changed}


def _short_id(id: str) -> str:
    return id if _SHORT_ID.fullmatch(id) else hashlib.sha256(id.encode(errors="replace")).hexdigest()[:9]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
