"""The body of POST /v1/chat/completions."""

import re
from collections.abc import Mapping
from typing import Any

from engine.request import MAX_TOP_LOGPROBS
from gateway.api.bounds import MAX_ARGUMENTS_NESTING, MAX_MESSAGES, MAX_TEMPLATE_VARIABLES
from gateway.api.errors import APIError, invalid
from gateway.api.fields import Fields, as_array, as_string, missing, wrong_type
from gateway.api.generation import Conversation, GenerationRequest
from gateway.api.json_body import parse_json
from gateway.api.sampling import MAX_TOKENS, REFUSED, take_hints, take_sampling, take_stream

ROLES = ("system", "developer", "user", "assistant", "tool")

REFUSED_CHAT: dict[str, tuple[object, ...]] = REFUSED | {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "mm_processor_kwargs": ({},),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "store": (False,),
    "suffix": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
REFUSED_IN_MESSAGE: dict[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_calls": ([],),
}

_SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_VARIABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RESERVED_VARIABLES = {
    *("self", "messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"),
    *("raise_exception", "strftime_now", "bos_token", "eos_token", "pad_token", "unk_token"),
}


def parse_chat(fields: Fields) -> GenerationRequest:
    """Raises: APIError, InvalidParameter."""
    model = fields.required_string("model")
    conversation = take_conversation(fields)
    limit_param, max_tokens = _take_limit(fields)
    logprobs = _take_logprobs(fields)
    params = take_sampling(fields, max_tokens=max_tokens, logprobs=logprobs)
    stream, include_usage = take_stream(fields)
    service_tier = take_hints(fields)
    session_id = fields.string("session_id")
    if session_id is not None:
        require_session_id(session_id, "session_id")
    fields.finish(REFUSED_CHAT)
    return GenerationRequest(
        model=model,
        prompts=(conversation,),
        prompt_param="messages",
        params=params,
        limit_param=limit_param,
        default_max_tokens=None,
        stream=stream,
        include_usage=include_usage,
        service_tier=service_tier,
        session_id=session_id,
    )


def is_session_id(text: str) -> bool:
    return _SESSION_ID.fullmatch(text) is not None


def require_session_id(text: str, param: str) -> None:
    """Raises: APIError, naming `param`."""
    if not is_session_id(text):
        raise invalid(param, f"{param} must be 1 to 128 letters, digits and . _ : -")


def take_conversation(fields: Fields) -> Conversation:
    """The messages and how to render them; /v1/tokenize takes the same."""
    items = fields.array("messages", MAX_MESSAGES)
    if items is None:
        raise missing("messages")
    if not items:
        raise invalid("messages", "messages must not be empty.")
    messages = tuple(_message(Fields(item, f"messages[{i}]")) for i, item in enumerate(items))
    return Conversation(
        messages=messages,
        add_generation_prompt=fields.boolean("add_generation_prompt", True),
        variables=_take_variables(fields),
    )


def _take_limit(fields: Fields) -> tuple[str | None, int | None]:
    """`max_tokens` is the older name of `max_completion_tokens`."""
    limits = {
        name: value
        for name in ("max_completion_tokens", "max_tokens")
        if (value := fields.integer(name, 1, MAX_TOKENS)) is not None
    }
    if len(set(limits.values())) > 1:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ.")
    return next(iter(limits.items()), (None, None))


def _take_logprobs(fields: Fields) -> int | None:
    wanted = fields.boolean("logprobs", False)
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise invalid("top_logprobs", "top_logprobs is only allowed when logprobs is true.")
    return (top or 0) if wanted else None


def _take_variables(fields: Fields) -> Mapping[str, str | int | float | bool]:
    """Scalars under plain names: enough for templates, nothing to run or to override in the renderer."""
    given = fields.nested("chat_template_kwargs")
    if given is None:
        return {}
    items = given.rest()
    if len(items) > MAX_TEMPLATE_VARIABLES:
        raise invalid("chat_template_kwargs", f"chat_template_kwargs takes at most {MAX_TEMPLATE_VARIABLES}.")
    variables = {}
    for name, value in items.items():
        path = given.path(name[:64])
        if not _VARIABLE_NAME.fullmatch(name) or name in _RESERVED_VARIABLES:
            raise invalid(path, "This template variable cannot be set.", "unsupported_parameter")
        if not isinstance(value, str | int | float | bool):
            raise wrong_type(path, "a string, a number or a boolean", value)
        variables[name] = value
    return variables


def _message(fields: Fields) -> dict[str, Any]:
    """One message, as the chat template takes it."""
    role = fields.required_string("role")
    if role not in ROLES:
        raise invalid(fields.path("role"), f"role must be one of {', '.join(ROLES)}.")
    message: dict[str, Any] = {"role": role}
    calls = _take_tool_calls(fields) if role == "assistant" else []
    content = fields.take("content")
    if content is not None:
        message["content"] = _content(content, fields.path("content"))
    elif calls:
        message["content"] = None
    else:
        raise missing(fields.path("content"))
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        message["tool_call_id"] = fields.required_string("tool_call_id")
    name = fields.string("name")
    if name is not None:
        message["name"] = name
    fields.finish(REFUSED_IN_MESSAGE)
    return message


def _content(content: object, path: str) -> str | list[dict[str, str]]:
    """A string, or text parts as they are: the chat template knows which form its model wants."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of parts", content)
    if not content:
        raise invalid(path, f"{path} must not be empty.")
    parts = []
    for i, item in enumerate(content):
        part = Fields(item, f"{path}[{i}]")
        kind = part.required_string("type")
        if kind != "text":
            raise invalid(part.path("type"), "Only parts of type text are supported.", "unsupported_parameter")
        text = part.take("text")
        if text is None:
            raise missing(part.path("text"))
        parts.append({"type": "text", "text": as_string(text, part.path("text"))})
        part.finish({})
    return parts


def _take_tool_calls(fields: Fields) -> list[dict[str, Any]]:
    """Calls that an assistant made earlier. Arguments become objects, which is what templates print."""
    value = fields.take("tool_calls")
    if value is None:
        return []
    items = as_array(value, fields.path("tool_calls"), MAX_MESSAGES)
    return [_tool_call(Fields(item, f"{fields.path('tool_calls')}[{i}]")) for i, item in enumerate(items)]


def _tool_call(call: Fields) -> dict[str, Any]:
    call_id = call.required_string("id")
    kind = call.required_string("type")
    if kind != "function":
        raise invalid(call.path("type"), "type must be function.")
    function = call.nested("function")
    if function is None:
        raise missing(call.path("function"))
    name = function.required_string("name")
    path = function.path("arguments")
    text = function.string("arguments") or "{}"
    function.finish({})
    call.finish({})
    try:
        arguments = parse_json(text.encode(), MAX_ARGUMENTS_NESTING)
    except APIError:
        raise invalid(path, f"{path} must be a JSON object in a string.") from None
    if not isinstance(arguments, dict):
        raise invalid(path, f"{path} must be a JSON object in a string.")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
