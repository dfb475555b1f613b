"""The grammar of an answer that must be tool calls: compact JSON, `{"name": .., "arguments": {..}}`."""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.grammar import GrammarSpec
from engine.grammar.closed_schema import closed_schema
from gateway.speech.tools import Tool, ToolChoice, ToolUse

MAX_FORCED_CALLS = 16
"""Maximum calls of one answer. A model that repeats itself would write calls up to `max_tokens`."""

_LITERAL = ("const", "enum", "default", "examples")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def forced_grammar(use: ToolUse | None) -> GrammarSpec | None:
    """The grammar; None where no call is required. Arguments match their tool's schema, closed, with or without
    `strict`. The answer is one call if the tool is named or parallel calls are off, else an array of at least one."""
    if use is None or use.choice is not ToolChoice.REQUIRED:
        return None
    tools = [tool for tool in use.tools if use.named in (None, tool.name)]
    schemas = [closed_schema(tool.parameters) for tool in tools]
    definitions = {f"tool{i}": _moved(schema, f"#/$defs/tool{i}") for i, schema in enumerate(schemas)}
    call: dict[str, Any] = {"anyOf": [_call(tool, f"#/$defs/tool{i}") for i, tool in enumerate(tools)]}
    if use.named is None and use.parallel:
        call = {"type": "array", "items": call, "minItems": 1, "maxItems": MAX_FORCED_CALLS}
    parts = tuple(GrammarSpec.json_schema(schema, tool.param) for tool, schema in zip(tools, schemas, strict=True))
    return GrammarSpec.json_schema({"$defs": definitions} | call, "tool_choice", parts)


def _call(tool: Tool, reference: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": {"$ref": reference}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, base: str) -> Any:
    """A schema with its local references rebased to `base`. Recursion is bounded by the nesting of schemas."""
    if isinstance(schema, list):
        return [_moved(each, base) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return dict(_moved_members(schema, base))


def _moved_members(schema: Mapping[str, Any], base: str) -> Iterator[tuple[str, Any]]:
    for keyword, value in schema.items():
        if keyword == "$ref" and isinstance(value, str) and value.startswith("#"):
            yield keyword, base + value[1:]
        elif keyword in _BY_NAME and isinstance(value, Mapping):
            yield keyword, {name: _moved(each, base) for name, each in value.items()}
        else:
            yield keyword, value if keyword in _LITERAL else _moved(value, base)
