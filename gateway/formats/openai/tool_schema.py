"""Tools in the body of a chat: `tools`, `tool_choice` and `parallel_tool_calls`."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gateway.formats.openai.structured import schema_spec
from gateway.http.errors import invalid
from gateway.http.fields import Fields, empty_array, missing, unsupported_value, wrong_pattern, wrong_type
from gateway.speech.tools import Tool, ToolChoice, ToolUse

MAX_TOOLS = 128

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_DESCRIPTION_CHARS = 32 * 1024
"""Larger than OpenAI's bound of 4,096, which descriptions of coding agents exceed."""
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def take_tools(fields: Fields) -> ToolUse | None:
    """Parse the tools; None where there are none.

    Raises:
        APIError: an invalid tool or `tool_choice`, naming the member.
    """
    items = fields.array("tools", MAX_TOOLS) or []
    tools = tuple(_tool(Fields(item, f"{fields.path('tools')}[{i}]")) for i, item in enumerate(items))
    require_own_names(tools)
    use = _chosen(fields, tools)
    parallel = fields.boolean("parallel_tool_calls", True)
    return replace(use, parallel=parallel) if tools else None


def _tool(fields: Fields) -> Tool:
    kind = fields.required_string("type")
    if kind != "function":
        raise invalid(
            fields.path("type"), "Only tools of type 'function' are supported by this server.", "unsupported_parameter"
        )
    function = fields.nested("function")
    if function is None:
        raise missing(fields.path("function"))
    fields.finish({})
    tool = read_function(function)
    function.finish({})
    return tool


def read_function(function: Fields) -> Tool:
    """Parse the members of a function that all tool formats share.

    Raises:
        APIError: a member is missing, of a wrong type or over a bound.
    """
    name, path = function.required_string("name"), function.path("name")
    if not _NAME.fullmatch(name):
        raise wrong_pattern(path, "1 to 64 letters, digits, underscores and dashes")
    description, path = function.string("description"), function.path("description")
    if description is not None and len(description) > MAX_DESCRIPTION_CHARS:
        raise invalid(path, f"Invalid '{path}': string too long. The maximum length is {MAX_DESCRIPTION_CHARS}.")
    parameters, path = function.take("parameters"), function.path("parameters")
    strict = function.boolean("strict", False)
    return Tool(name, description, arguments_schema(parameters, path), strict, path)


def arguments_schema(value: object, path: str) -> Mapping[str, object]:
    """The schema of the arguments. A tool without one takes no arguments."""
    if value is None:
        return _NO_ARGUMENTS
    if not isinstance(value, dict):
        raise wrong_type(path, "a JSON schema", value)
    schema_spec(value, path)
    if value.get("type", "object") != "object":
        raise unsupported_value(f"{path}.type", value["type"], ("object",))
    return {"type": "object"} | value


def require_own_names(tools: Sequence[Tool]) -> None:
    """Raises: APIError."""
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            path = tool.param.removesuffix("parameters") + "name"
            raise invalid(path, "Tool names must be unique.")
        seen.add(tool.name)


def _chosen(fields: Fields, tools: tuple[Tool, ...]) -> ToolUse:
    """The tools as `tool_choice` has them."""
    given, path, param = fields.take("tool_choice"), fields.path("tool_choice"), fields.path("tools")
    if given is None:
        return ToolUse(tools, param=param)
    if isinstance(given, str):
        if given not in tuple(ToolChoice):
            raise unsupported_value(path, given, ToolChoice)
        choice = ToolChoice(given)
        if not tools and choice is not ToolChoice.NONE:
            raise invalid(path, f"'{path}' is only allowed when 'tools' are specified.")
        return ToolUse(tools, choice, param=param)
    stated = Fields(given, path)
    kind = stated.required_string("type")
    if kind == "function":
        return ToolUse(tools, ToolChoice.REQUIRED, _named(stated, tools).name, param=param)
    if kind == "allowed_tools":
        allowed = stated.nested("allowed_tools")
        if allowed is None:
            raise missing(stated.path("allowed_tools"))
        stated.finish({})
        return replace(allowed_tools(allowed, tools, _allowed_name), param=param)
    path = stated.path("type")
    raise invalid(path, f"'{path}' must be 'function' or 'allowed_tools'.", "unsupported_parameter")


def allowed_tools(given: Fields, tools: Sequence[Tool], read: Callable[[Fields, Sequence[Tool]], Tool]) -> ToolUse:
    """Parse `mode` and `tools` of OpenAI's allowed tools: the prompt contains only those. `read` parses one of them.

    Raises:
        APIError: the mode is unknown, or there are no tools.
    """
    mode = given.required_string("mode")
    if mode not in (ToolChoice.AUTO, ToolChoice.REQUIRED):
        raise unsupported_value(given.path("mode"), mode, ("auto", "required"))
    items = given.array("tools", MAX_TOOLS) or []
    if not items:
        raise empty_array(given.path("tools"))
    allowed = {read(Fields(item, f"{given.path('tools')}[{i}]"), tools).name for i, item in enumerate(items)}
    given.finish({})
    return ToolUse(tuple(tool for tool in tools if tool.name in allowed), ToolChoice(mode))


def declared(given: Fields, tools: Sequence[Tool]) -> Tool:
    """The tool that the member `name` names.

    Raises:
        APIError: there is none.
    """
    name = given.required_string("name")
    for tool in tools:
        if tool.name == name:
            return tool
    raise invalid(given.path("name"), f"The tool in '{given.path('name')}' is not in 'tools'.")


def _allowed_name(given: Fields, tools: Sequence[Tool]) -> Tool:
    if (kind := given.required_string("type")) != "function":
        raise unsupported_value(given.path("type"), kind, ("function",))
    return _named(given, tools)


def _named(wrapping: Fields, tools: Sequence[Tool]) -> Tool:
    """The tool of `{"type": "function", "function": {"name": ...}}`, whose type was taken."""
    function = wrapping.nested("function")
    if function is None:
        raise missing(wrapping.path("function"))
    wrapping.finish({})
    tool = declared(function, tools)
    function.finish({})
    return tool
