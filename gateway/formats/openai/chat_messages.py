"""Parses the messages of a chat and the options of its template."""

import re
from collections.abc import Mapping
from typing import Any

from gateway.formats.openai.older_functions import OlderCalls
from gateway.generation.request import Conversation
from gateway.http.bounds import MAX_ARGUMENTS_NESTING, MAX_MESSAGES, MAX_TEMPLATE_VARIABLES
from gateway.http.errors import APIError, invalid
from gateway.http.fields import (
    Fields,
    array_too_long,
    as_array,
    as_string,
    empty_array,
    missing,
    unsupported_value,
    wrong_type,
)
from gateway.http.json_body import InnerJSON

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

REFUSED_IN_MESSAGE: dict[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "parsed": (),
    "reasoning": ("",),
    "reasoning_content": ("",),
    "refusal": ("",),
    "tool_calls": ([],),
}
"""Members of answers that clients send back, each with its neutral values."""

_VARIABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESERVED_VARIABLES = {
    *("self", "messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"),
    *("continue_final_message", "most_tokens"),
    *("raise_exception", "strftime_now", "bos_token", "eos_token", "pad_token", "unk_token"),
}


def take_conversation(fields: Fields) -> Conversation:
    """The messages and the options that render them, as in /v1/tokenize."""
    items = fields.array("messages", MAX_MESSAGES)
    if items is None:
        raise missing("messages")
    if not items:
        raise empty_array("messages")
    inner, older = InnerJSON(), OlderCalls()
    messages = tuple(_message(Fields(item, f"messages[{i}]"), inner, older) for i, item in enumerate(items))
    continues = _take_continue(fields, messages[-1])
    return Conversation(
        messages=messages,
        add_generation_prompt=fields.boolean("add_generation_prompt", not continues),
        continue_final_message=continues,
        reasoning_effort=_take_effort(fields),
        variables=_take_variables(fields),
    )


def _take_continue(fields: Fields, last: Mapping[str, Any]) -> bool:
    """`continue_final_message`: the answer continues the assistant's last text, without a generation prompt."""
    if not fields.boolean("continue_final_message", False):
        return False
    if fields.boolean("add_generation_prompt", False):
        raise invalid(
            "add_generation_prompt", "'add_generation_prompt' must be false when 'continue_final_message' is true."
        )
    if last["role"] != "assistant" or "tool_calls" in last:
        raise invalid(
            "messages",
            "The last message must be an assistant message without tool calls when 'continue_final_message' is true.",
        )
    return True


def _take_effort(fields: Fields) -> str | None:
    effort = fields.string("reasoning_effort")
    if effort not in (None, *EFFORTS):
        raise unsupported_value("reasoning_effort", effort, EFFORTS)
    return effort


def _take_variables(fields: Fields) -> Mapping[str, str | int | float | bool]:
    """Template variables: scalars under plain names, none of which overrides a variable of the renderer."""
    given = fields.nested("chat_template_kwargs")
    if given is None:
        return {}
    items = given.rest()
    if len(items) > MAX_TEMPLATE_VARIABLES:
        raise array_too_long("chat_template_kwargs", MAX_TEMPLATE_VARIABLES, len(items))
    variables = {}
    for name, value in items.items():
        path = given.path(name[:64])
        if not _VARIABLE_NAME.fullmatch(name) or name in _RESERVED_VARIABLES:
            raise invalid(path, f"The template variable '{path}' cannot be set.", "unsupported_parameter")
        if not isinstance(value, str | int | float | bool):
            raise wrong_type(path, "a string, a number or a boolean", value)
        variables[name] = value
    return variables


def _message(fields: Fields, inner: InnerJSON, older: OlderCalls) -> dict[str, Any]:
    """One message in the form that chat templates read."""
    role = fields.required_string("role")
    if role not in ROLES:
        raise unsupported_value(fields.path("role"), role, ROLES)
    message: dict[str, Any] = {"role": "tool" if role == "function" else role}
    calls = _take_calls(fields, inner, older) if role == "assistant" else []
    content = fields.take("content")
    if role == "assistant":
        content = content or fields.string("refusal")  # an answer has one of them
    if content is not None:
        message["content"] = _content(content, fields.path("content"))
    elif calls:
        message["content"] = None
    else:
        raise missing(fields.path("content"))
    if calls:
        message["tool_calls"] = calls
    if role == "assistant":
        message |= _take_reasoning(fields)
    if role == "tool":
        message["tool_call_id"] = fields.required_string("tool_call_id")
    name = fields.required_string("name") if role == "function" else fields.string("name")
    if name is not None:
        message["name"] = name
        if role == "function":
            message["tool_call_id"] = older.id_of(name)
    fields.finish(REFUSED_IN_MESSAGE)
    return message


def _take_reasoning(fields: Fields) -> dict[str, str]:
    """The assistant's reasoning, from either of its two members, under the one that templates read."""
    texts = {fields.string(name) for name in ("reasoning_content", "reasoning")} - {None, ""}
    if len(texts) > 1:
        path = fields.path("reasoning_content")
        raise invalid(path, f"'{path}' and '{fields.path('reasoning')}' have different values.")
    return {"reasoning_content": text} if (text := next(iter(texts), None)) else {}


def _content(content: object, path: str) -> str | list[dict[str, str]]:
    """A string or an array of text parts, unchanged: the chat template accepts either."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of parts", content)
    if not content:
        raise empty_array(path)
    parts = []
    for i, item in enumerate(content):
        part = Fields(item, f"{path}[{i}]")
        kind = part.required_string("type")
        if kind not in ("text", "refusal"):
            raise invalid(
                part.path("type"),
                "Only content parts of type 'text' are supported by this server.",
                "unsupported_parameter",
            )
        text = part.take(kind)
        if text is None:
            raise missing(part.path(kind))
        parts.append({"type": "text", "text": as_string(text, part.path(kind))})
        part.finish({})
    return parts


def _take_calls(fields: Fields, inner: InnerJSON, older: OlderCalls) -> list[dict[str, Any]]:
    """Calls of an earlier answer, in either form. Arguments are parsed to objects, which templates print."""
    value, function = fields.take("tool_calls"), fields.nested("function_call")
    if function is not None:
        if value:
            raise invalid(fields.path("function_call"), "A message has either 'tool_calls' or 'function_call'.")
        return [older.call(*_call(function, inner))]
    if value is None:
        return []
    items = as_array(value, fields.path("tool_calls"), MAX_MESSAGES)
    return [_tool_call(Fields(item, f"{fields.path('tool_calls')}[{i}]"), inner) for i, item in enumerate(items)]


def _tool_call(call: Fields, inner: InnerJSON) -> dict[str, Any]:
    call_id = call.required_string("id")
    kind = call.required_string("type")
    if kind != "function":
        raise unsupported_value(call.path("type"), kind, ("function",))
    function = call.nested("function")
    if function is None:
        raise missing(call.path("function"))
    call.finish({})
    name, arguments = _call(function, inner)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _call(function: Fields, inner: InnerJSON) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a called function."""
    name = function.required_string("name")
    path = function.path("arguments")
    text = function.string("arguments") or "{}"
    function.finish({})
    try:
        arguments = inner.parse(text.encode(), MAX_ARGUMENTS_NESTING)
    except APIError:
        raise invalid(path, f"Invalid '{path}': expected a string that contains a JSON object.") from None
    if not isinstance(arguments, dict):
        raise invalid(path, f"Invalid '{path}': expected a string that contains a JSON object.")
    return name, arguments
