"""The tools of a response: `tools`, `tool_choice` and `parallel_tool_calls`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.formats.openai.tool_schema import (
    MAX_TOOLS,
    allowed_tools,
    declared,
    read_function,
    require_own_names,
)
from gateway.formats.openai_responses.items import CallName, full_name
from gateway.http.errors import invalid
from gateway.http.fields import Fields, as_string, unsupported_value, wrong_pattern
from gateway.speech.tools import Tool, ToolChoice, ToolUse

_NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_SHOWN_CHARS = 64
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"],),
    "async": (False,),
    "defer_loading": (False,),
    "output_schema": (),
}
"""Members of OpenAI's functions that are not supported, each with its neutral values."""


@dataclass(frozen=True, slots=True)
class DeclaredTools:
    """`use`: the tools that may be called; None without tools. `names`: name in the prompt -> function as the client
    declared it. `echo`: members that the response repeats."""

    use: ToolUse | None
    names: Mapping[str, CallName]
    echo: Mapping[str, Any]

    @property
    def unshown_chars(self) -> int:
        """Approximate characters of the repeated tools that `tool_choice` excludes from the prompt."""
        shown = () if self.use is None else self.use.shown
        shown_chars = sum(len(orjson.dumps((tool.description, tool.parameters))) for tool in shown)
        return max(0, len(orjson.dumps((self.echo["tools"], self.echo["tool_choice"]))) - shown_chars)


def take_tools(fields: Fields) -> DeclaredTools:
    """
    Raises:
        APIError: 400, naming the member. Only functions, alone or in namespaces, are supported.
    """
    tools: list[Tool] = []
    names: dict[str, CallName] = {}
    echo: list[dict[str, Any]] = []
    for i, item in enumerate(fields.array("tools", MAX_TOOLS) or []):
        given = Fields(item, f"tools[{i}]")
        kind = given.required_string("type")
        if kind == "namespace":
            namespace, inner = _namespace(given)
            full = [replace(tool, name=full_name(namespace["name"], tool.name)) for tool in inner]
            names |= {
                whole.name: CallName(tool.name, namespace["name"]) for whole, tool in zip(full, inner, strict=True)
            }
            tools += [_described(tool, namespace["description"]) for tool in full]
            echo.append(namespace | {"tools": [_echo(tool) for tool in inner]})
        else:
            tool = _function(given, kind)
            names[tool.name] = CallName(tool.name)
            tools.append(tool)
            echo.append(_echo(tool))
    require_own_names(tools)
    parallel = fields.boolean("parallel_tool_calls", True)
    choice = fields.take("tool_choice")
    choice = ToolChoice.AUTO.value if choice is None else choice
    use = _chosen(choice, tuple(tools), parallel)
    return DeclaredTools(
        use if tools else None, names, {"tools": echo, "tool_choice": choice, "parallel_tool_calls": parallel}
    )


def _namespace(given: Fields) -> tuple[dict[str, Any], list[Tool]]:
    """A namespace's own members, and its functions under their own names."""
    name = given.required_string("name")
    if not _NAMESPACE.fullmatch(name):
        raise wrong_pattern(given.path("name"), "1 to 64 letters, digits, underscores and dashes")
    description, path = given.required_string("description"), given.path("tools")
    items = given.array("tools", MAX_TOOLS) or []
    functions = [Fields(item, f"{path}[{i}]") for i, item in enumerate(items)]
    tools = [_function(each, each.required_string("type")) for each in functions]
    given.finish({})
    return {"type": "namespace", "name": name, "description": description}, tools


def _described(tool: Tool, namespace: str) -> Tool:
    """The tool with its namespace's description before its own."""
    return replace(tool, description=f"{namespace}\n{tool.description or ''}".rstrip())


def _function(given: Fields, kind: str) -> Tool:
    if kind != "function":
        message = f"Tools of type '{kind[:_MAX_SHOWN_CHARS]}' are not supported by this server: only functions are."
        raise invalid(given.path("type"), message, "unsupported_parameter")
    tool = read_function(given)
    given.finish(_REFUSED)
    return tool


def _chosen(choice: object, tools: tuple[Tool, ...], parallel: bool) -> ToolUse:
    if isinstance(choice, str):
        if choice not in list(ToolChoice):
            raise unsupported_value("tool_choice", choice, ToolChoice)
        if choice == ToolChoice.REQUIRED and not tools:
            raise invalid("tool_choice", "'tool_choice' is only allowed to be 'required' when 'tools' are specified.")
        return ToolUse(tools, ToolChoice(choice), parallel=parallel)
    given = Fields(choice, "tool_choice")
    kind = given.required_string("type")
    if kind == "function":
        named = declared(given, tools).name
        given.finish({})
        return ToolUse(tools, ToolChoice.REQUIRED, named, parallel)
    if kind == "allowed_tools":
        return replace(allowed_tools(given, tools, _allowed_name), parallel=parallel)
    message = f"'tool_choice' of type '{kind[:_MAX_SHOWN_CHARS]}' is not supported by this server."
    raise invalid("tool_choice.type", message, "unsupported_parameter")


def _allowed_name(given: Fields, tools: Sequence[Tool]) -> Tool:
    as_string(given.take("type") or "function", given.path("type"))
    tool = declared(given, tools)
    given.finish({})
    return tool


def _echo(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
