"""Anthropic's `tools` and `tool_choice`."""

import re

from gateway.formats.openai.tool_schema import arguments_schema
from gateway.http.errors import invalid
from gateway.http.fields import Fields, missing, unsupported_value, wrong_pattern
from gateway.speech.tools import Tool, ToolChoice, ToolUse

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_SHOWN_TYPE_CHARS = 64

_CHOICES = {
    "auto": ToolChoice.AUTO,
    "any": ToolChoice.REQUIRED,
    "tool": ToolChoice.REQUIRED,
    "none": ToolChoice.NONE,
}


def take_tools(fields: Fields) -> ToolUse | None:
    """None where there are no tools. Raises: APIError."""
    items = fields.array("tools", MAX_TOOLS) or []
    tools = tuple(_tool(Fields(item, f"{fields.path('tools')}[{i}]")) for i, item in enumerate(items))
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if tool.name in seen:
            raise invalid(f"tools[{i}].name", "Tool names must be unique.")
        seen.add(tool.name)
    choice = fields.nested("tool_choice")
    if choice is None:
        return ToolUse(tools) if tools else None
    if not tools:
        raise invalid("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
    return _chosen(choice, tools)


def _chosen(given: Fields, tools: tuple[Tool, ...]) -> ToolUse:
    kind, path = given.required_string("type"), given.path("type")
    choice = _CHOICES.get(kind)
    if choice is None:
        raise unsupported_value(path, kind, _CHOICES)
    named = None
    if kind == "tool":
        named = given.required_string("name")
        if all(tool.name != named for tool in tools):
            raise invalid(given.path("name"), f"The tool in '{given.path('name')}' is not in 'tools'.")
    parallel = not given.boolean("disable_parallel_tool_use", False)
    given.finish({})
    return ToolUse(tools, choice, named, parallel)


def _tool(fields: Fields) -> Tool:
    kind = fields.string("type")
    if kind not in (None, "custom"):
        message = (
            f"Tools of type '{kind[:_MAX_SHOWN_TYPE_CHARS]}' are not supported by this server: only client tools are."
        )
        raise invalid(fields.path("type"), message, "unsupported_parameter")
    name = fields.required_string("name")
    if not _NAME.fullmatch(name):
        raise wrong_pattern(fields.path("name"), "1 to 128 letters, digits, underscores and dashes")
    description = fields.string("description")
    schema, path = fields.take("input_schema"), fields.path("input_schema")
    if schema is None:
        raise missing(path)
    strict = fields.boolean("strict", False)
    fields.nested("cache_control")  # a hint, as in blocks
    fields.boolean("eager_input_streaming", False)
    fields.finish({"allowed_callers": (["direct"],), "defer_loading": (False,), "input_examples": ([],)})
    return Tool(name, description, arguments_schema(schema, path), strict, path)
