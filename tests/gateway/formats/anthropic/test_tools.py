"""Anthropic's spelling of tools and of the choice among them."""

import pytest

from gateway.formats.anthropic.tools import MAX_TOOLS, take_tools
from gateway.http.errors import APIError
from gateway.http.fields import Fields
from gateway.speech.tools import ToolChoice

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD = {"name": "add", "input_schema": SCHEMA}
FIND = {"name": "find", "input_schema": {"type": "object"}}


def taken(choice=None, *tools):
    return take_tools(Fields({"tools": list(tools or (ADD, FIND)), "tool_choice": choice}))


def test_no_tools_are_none():
    assert take_tools(Fields({})) is None
    assert take_tools(Fields({"tools": []})) is None
    assert take_tools(Fields({"tools": None, "tool_choice": None})) is None


def test_a_tool():
    hints = {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "allowed_callers": ["direct"]}
    use = taken(None, ADD | hints | {"type": "custom", "description": "Adds.", "strict": True}, FIND)
    add, find = use.tools
    assert (add.name, add.description, add.parameters, add.strict) == ("add", "Adds.", SCHEMA, True)
    assert add.param == "tools[0].input_schema"
    assert (find.name, find.description, find.strict) == ("find", None, False)
    assert (use.choice, use.named, use.parallel) == (ToolChoice.AUTO, None, True)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, (ToolChoice.AUTO, None, True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, (ToolChoice.AUTO, None, False)),
        ({"type": "any"}, (ToolChoice.REQUIRED, None, True)),
        ({"type": "any", "disable_parallel_tool_use": True}, (ToolChoice.REQUIRED, None, False)),
        ({"type": "tool", "name": "find"}, (ToolChoice.REQUIRED, "find", True)),
        ({"type": "none"}, (ToolChoice.NONE, None, True)),
    ],
)
def test_choices(choice, expected):
    use = taken(choice)
    assert (use.choice, use.named, use.parallel) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [ADD] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": ["add"]}, "tools[0]"),
        ({"tools": [ADD, {"type": "web_search_20250305", "name": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name"),
        ({"tools": [ADD | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [ADD, FIND, ADD]}, "tools[2].name"),
        ({"tools": [ADD | {"description": 5}]}, "tools[0].description"),
        ({"tools": [{"name": "add"}]}, "tools[0].input_schema"),
        ({"tools": [ADD | {"input_schema": "{}"}]}, "tools[0].input_schema"),
        ({"tools": [ADD | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [ADD | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [ADD | {"parameters": {}}]}, "tools[0].parameters"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "find"}}, "tool_choice.name"),
        ({"tools": [ADD], "tool_choice": {"type": "none", "name": "add"}}, "tool_choice.name"),
    ],
)
def test_refusals_name_the_field(fields, param):
    with pytest.raises(APIError) as refusal:
        take_tools(Fields(fields))
    assert (refusal.value.status, refusal.value.param) == (400, param)


def test_tools_that_run_elsewhere_are_refused_by_name():
    with pytest.raises(APIError, match="web_search_20250305"):
        taken(None, {"type": "web_search_20250305", "name": "web_search"})
