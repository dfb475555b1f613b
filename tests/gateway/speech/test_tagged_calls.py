"""Calls between markers and tags: the types of their values, streamed strings, and texts that only resemble calls."""

import json

import pytest

from engine.text.dialect import CallForm
from gateway.speech.call_forms import FORMS
from gateway.speech.calls import CallReader
from gateway.speech.pieces import Call, CallArguments, CallBegun, ParsedMessage
from tests.gateway.speech.reading import (
    BEGIN,
    END,
    glm,
    pieces_of,
    reader,
    spoken,
    v3,
    v31,
    xml,
)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (CallForm.QWEN_XML, "<tool_call"),
        (CallForm.QWEN_XML, "<tool_call><tool_call>"),
        (CallForm.QWEN_XML, "<tool_call></tool_call><function></function>"),
        (CallForm.QWEN_XML, "<function=weather"),
        (CallForm.QWEN_XML, "<tool_call><function=></function></tool_call>"),
        (CallForm.QWEN_XML, "<function=" + "weather" * 100),
        (CallForm.QWEN_XML, "<tool_call><function" * 50),
        (CallForm.DEEPSEEK, BEGIN),
        (CallForm.DEEPSEEK, BEGIN + END),
        (CallForm.DEEPSEEK, BEGIN + "<｜tool▁call▁begin｜>time"),
        (CallForm.DEEPSEEK, v31("time", "[]")),
        (CallForm.DEEPSEEK, v31("time", "time\n```json\n{}\n```")),
        (CallForm.DEEPSEEK, v3("time", "")),
        (CallForm.DEEPSEEK, "<｜tool▁call▁begin｜>" * 100),
        (CallForm.GEMMA, "<|tool_call>"),
        (CallForm.GEMMA, "<|tool_call>call:"),
        (CallForm.GEMMA, "<|tool_call>weather{}<tool_call|>"),
        (CallForm.GEMMA, "<|tool_call>call:weather<tool_call|>"),
        (CallForm.GEMMA, "<|tool_call>call:weather[]<tool_call|>"),
        (CallForm.GEMMA, "<|tool_call>call:" * 100),
    ],
)
def test_what_looks_like_a_call_between_markers_is_text(form, text):
    assert spoken(reader(form), text) == spoken(reader(form), *text) == ParsedMessage(text)


@pytest.mark.parametrize(
    ("form", "text", "arguments", "rest"),
    [
        (CallForm.QWEN_XML, "<function=weather><parameter=city>\nOs", '{"city": "Os', None),
        (CallForm.QWEN_XML, "<function=weather><parameter=days>1</parameter>\n", "", "<parameter=days>1</parameter>\n"),
        (CallForm.QWEN_XML, "<function=weather><parameter=a b>1</parameter>", "", "<parameter=a b>1</parameter>"),
        (CallForm.QWEN_XML, "<function=weather><parameter>1</parameter>", "", "<parameter>1</parameter>"),
        (CallForm.QWEN_XML, "<function=weather></tool_call>", "", "</tool_call>"),
        (CallForm.QWEN_XML, f"<function=weather>{xml('time')}", "", None),
        (CallForm.DEEPSEEK, BEGIN + v31("weather", '{"city": Oslo}'), '{"city": ', "Oslo}<｜tool▁call▁end｜>"),
        (CallForm.GEMMA, '<|tool_call>call:weather{city:<|"|>Os', '{"city": "Os', None),
        (CallForm.GEMMA, "<|tool_call>call:weather{city", "", "city"),
        (CallForm.GEMMA, "<|tool_call>call:weather{city:,days:1}", '{"city": ', ",days:1}"),
        (CallForm.GEMMA, "<|tool_call>call:weather{city:<b>}", '{"city": ', "<b>}"),
        (CallForm.GEMMA, "<|tool_call>call:weather{x:" + "[" * 100, '{"x": ' + "[" * 64, "[" * 36),
        (CallForm.GEMMA, "<|tool_call>call:weather{:1}", "", ":1}"),
        (CallForm.DEEPSEEK, BEGIN + '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Os', '{"city": "Os', None),
    ],
)
def test_a_call_between_markers_that_goes_wrong_stays_unfinished(form, text, arguments, rest):
    told = spoken(reader(form), text)
    assert spoken(reader(form), *text) == told
    assert told.calls[0] == Call("call_0", "weather", arguments)
    assert told.text == rest
    with pytest.raises(json.JSONDecodeError):
        json.loads(told.calls[0].arguments)


@pytest.mark.parametrize(
    ("declared", "written", "expected"),
    [
        ({"type": "string"}, "12", '"12"'),
        ({"type": "string"}, '"a"', r'"\"a\""'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": "number"}, "12", "12"),
        ({"type": "number"}, "1.50", "1.50"),
        ({"type": "number"}, "twelve", '"twelve"'),
        ({"type": "integer"}, "2.0", "2.0"),
        ({"type": "integer"}, "2.5", '"2.5"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "false", "false"),
        ({"type": "boolean"}, "1", '"1"'),
        ({"type": "array"}, ' ["a"]', '["a"]'),
        ({"type": "object"}, "{'a': 1}", '''"{'a': 1}"'''),
        ({"type": ["string", "null"]}, "None", "null"),
        ({"type": ["string", "null"]}, "12", '"12"'),
        ({"type": ["string", "integer"]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "null"),
        ({"oneOf": [{"$ref": "#/$defs/Day"}]}, "12", '"12"'),
        ({"$ref": "#/$defs/Loop"}, "12", "12"),
        ({"$ref": "#/$defs/Missing"}, "12", "12"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"const": 1}, "1", "1"),
        ({"type": 3}, "a", '"a"'),
        (None, "True", '"True"'),
        (None, "1e400", "1e400"),
        (True, "12", "12"),
    ],
)
@pytest.mark.parametrize("form", [CallForm.QWEN_XML, CallForm.GLM, CallForm.MINIMAX])
def test_a_value_between_tags_has_its_declared_type(form, declared, written, expected):
    schema = {"properties": {"x": declared}, "$defs": {"Day": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}}
    text = {
        CallForm.QWEN_XML: f"<tool_call>{xml('f', ('x', written))}</tool_call>",
        CallForm.GLM: f"<tool_call>f{glm('x', written)}</tool_call>",
        CallForm.MINIMAX: f'<minimax:tool_call><invoke name="f"><parameter name="x">{written}</parameter></invoke>',
    }[form]
    told = spoken(CallReader(FORMS[form], {"f": schema}, None, str), text)
    assert [call.arguments for call in told.calls] == [f'{{"x": {expected}}}']


@pytest.mark.parametrize("schema", [None, [], {"properties": []}, {"properties": {"x": []}}])
def test_a_schema_that_declares_nothing_leaves_values_as_they_are(schema):
    text = f"<tool_call>{xml('f', ('x', '12'))}</tool_call>"
    told = spoken(CallReader(FORMS[CallForm.QWEN_XML], {"f": schema}, None, str), text)
    assert told.calls[0].arguments == '{"x": 12}'


def test_a_string_between_tags_comes_out_as_it_is_written():
    parts = ["<tool_call>\n<function=weather>\n<parameter=ci", "ty>\nOs", "lo\n", "</par", "k>", "\n</parameter>", "\n"]
    parts += ["</function>", "\n</tool_call>", ""]
    assert pieces_of(reader(CallForm.QWEN_XML), parts) == [
        [CallBegun(0, "call_0", "weather")],
        [CallArguments(0, '{"city": "Os')],
        [CallArguments(0, "lo")],
        [],
        [CallArguments(0, r"\n</park>")],
        [],
        [],
        [CallArguments(0, '"}')],
        [],
        [],
    ]
