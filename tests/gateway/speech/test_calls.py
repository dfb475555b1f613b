"""Calls in text: each form, what resembles a call, and what comes out as soon as it is certain."""

import json

import pytest

from engine.request import FinishReason
from engine.text.dialect import CallForm
from gateway.speech.pieces import CallArguments, CallBegun, ParsedMessage, Text
from tests.gateway.speech.reading import (
    BEGIN,
    CALL,
    END,
    LATE,
    OSLO,
    called,
    gemma_call,
    glm,
    pieces_of,
    reader,
    spoken,
    v3,
    v31,
    xml,
)


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (CallForm.HERMES, f"<tool_call>\n{CALL}\n</tool_call>", called(OSLO)),
        (CallForm.GLM, f"<tool_call>weather\n{glm('city', 'Oslo')}\n</tool_call>", called(OSLO)),
        (CallForm.GLM, "<tool_call>time</tool_call>\n", called(LATE)),
        (
            CallForm.GLM,
            f"Both.<tool_call>weather{glm('city', 'Oslo')}</tool_call>\n<tool_call>time\n</tool_call>",
            called(OSLO, LATE, text="Both."),
        ),
        # Values are JSON unless the schema says that they are strings, or they are none.
        (
            CallForm.GLM,
            f"<tool_call>weather{glm('city', '12')}{glm('days', ' 12 ')}{glm('at', '[1, {}]')}{glm('x', 'NaN')}"
            "</tool_call>",
            called(("weather", '{"city": "12", "days": 12, "at": [1, {}], "x": "NaN"}')),
        ),
        (
            CallForm.GLM,
            f"<tool_call>storm{glm('city', 'Oslo')}</tool_call>",
            ParsedMessage(f"<tool_call>storm{glm('city', 'Oslo')}</tool_call>"),
        ),
        (CallForm.GLM, f"<tool_call>{CALL}</tool_call>", ParsedMessage(f"<tool_call>{CALL}</tool_call>")),
        (
            CallForm.MINIMAX,
            '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
            '<invoke name="time">\n</invoke>\n</minimax:tool_call>',
            called(OSLO, LATE),
        ),
        (
            CallForm.MINIMAX,
            '<minimax:tool_call><invoke name="storm"></invoke></minimax:tool_call>',
            ParsedMessage('<minimax:tool_call><invoke name="storm"></invoke></minimax:tool_call>'),
        ),
        (CallForm.QWEN_XML, f"<tool_call>\n{xml('weather', ('city', 'Oslo'))}\n</tool_call>", called(OSLO)),
        (CallForm.QWEN_XML, "<tool_call><function=time></function></tool_call>", called(LATE)),
        (CallForm.QWEN_XML, f"<tool_call>\n{xml('weather', ('city', 'Oslo'))}\n</tool_", called(OSLO)),
        (
            CallForm.QWEN_XML,
            f"Both.\n<tool_call>\n{xml('weather', ('city', 'Oslo'))}\n</tool_call>\n<tool_call>\n{xml('time')}\n"
            "</tool_call>",
            called(OSLO, LATE, text="Both.\n"),
        ),
        (
            CallForm.QWEN_XML,
            f"<tool_call>{xml('weather', ('city', 'Oslo'))}{xml('time')}</tool_call>",
            called(OSLO, LATE),
        ),
        # Qwen3-Coder may leave the first tag out.
        (CallForm.QWEN_XML, f"So:\n{xml('weather', ('city', 'Oslo'))}\n</tool_call>", called(OSLO, text="So:\n")),
        (CallForm.QWEN_XML, f"{xml('weather', ('city', 'Oslo'))}\nDone.", called(OSLO, text="\nDone.")),
        (
            CallForm.QWEN_XML,
            f"<tool_call>{xml('weather', ('city', '12'), ('days', '12'), ('x', '[1, {}]'), ('y', 'NaN'))}</tool_call>",
            called(("weather", '{"city": "12", "days": 12, "x": [1, {}], "y": "NaN"}')),
        ),
        # One line break at either end of a value is layout; quotes, tags and further line breaks are the value.
        (
            CallForm.QWEN_XML,
            "<tool_call>" + xml("weather", ("city", '"a"\n</parameter>\n<parameter>\\ \n')) + "</tool_call>",
            called(("weather", r'{"city": "\"a\"\n</parameter>\n<parameter>\\ \n"}')),
        ),
        (
            CallForm.QWEN_XML,
            "<function=weather><parameter=city></parameter><parameter=days>\n\n</parameter></function>",
            called(("weather", '{"city": "", "days": ""}')),
        ),
        (
            CallForm.QWEN_XML,
            f"<tool_call>{xml('storm')}</tool_call>",
            ParsedMessage(f"<tool_call>{xml('storm')}</tool_call>"),
        ),
        (CallForm.QWEN_XML, f"<tool_call>{CALL}</tool_call>", ParsedMessage(f"<tool_call>{CALL}</tool_call>")),
        (CallForm.DEEPSEEK, BEGIN + v31(*OSLO) + END, called(OSLO)),
        (CallForm.DEEPSEEK, BEGIN + v3(*OSLO) + END, called(OSLO)),
        (
            CallForm.DEEPSEEK,
            "Both." + BEGIN + v31(*OSLO) + "\n" + v31(*LATE) + END,
            called(OSLO, LATE, text="Both."),
        ),
        (
            CallForm.DEEPSEEK,
            BEGIN + v3(*OSLO) + "\n" + v3("time", "{}") + END,
            called(OSLO, LATE),
        ),
        # The marker of all calls may be missing, and so may what comes after the last one's arguments.
        (CallForm.DEEPSEEK, v31(*OSLO) + END, called(OSLO)),
        (CallForm.DEEPSEEK, (BEGIN + v3(*OSLO)).removesuffix("▁end｜>"), called(OSLO)),
        (CallForm.DEEPSEEK, BEGIN + v3(*OSLO).partition("\n```<")[0], called(OSLO)),
        (CallForm.DEEPSEEK, BEGIN + v31(*OSLO) + "<｜tool▁calls", called(OSLO)),
        (CallForm.DEEPSEEK, BEGIN + v31("storm", "{}") + END, ParsedMessage(BEGIN + v31("storm", "{}") + END)),
        (CallForm.DEEPSEEK, BEGIN + v3("storm", "{}") + END, ParsedMessage(BEGIN + v3("storm", "{}") + END)),
        (CallForm.DEEPSEEK, BEGIN + BEGIN + v31("time", "{}") + END, called(LATE, text=BEGIN)),
        (
            CallForm.DEEPSEEK,
            f"{BEGIN}{v31('time', '{}')} and{v31('time', '{}')}",
            called(LATE, LATE, text=" and"),
        ),
        (CallForm.GEMMA, gemma_call("weather", {"city": "Oslo"}), called(OSLO)),
        (CallForm.GEMMA, gemma_call("weather", {"city": "Oslo"}, quoted_keys=True), called(OSLO)),
        (CallForm.GEMMA, gemma_call("time", {}), called(LATE)),
        (
            CallForm.GEMMA,
            "Both." + gemma_call("weather", {"city": "Oslo"}) + gemma_call("time", {}),
            called(OSLO, LATE, text="Both."),
        ),
        (CallForm.GEMMA, '<|tool_call> call:weather { city : <|"|>Oslo<|"|> , } <tool_call|>', called(OSLO)),
        # What comes after the last call's arguments may be missing.
        (CallForm.GEMMA, gemma_call("weather", {"city": "Oslo"}).removesuffix("call|>"), called(OSLO)),
        (CallForm.GEMMA, gemma_call("weather", {"city": "Oslo"}).removesuffix("<tool_call|>"), called(OSLO)),
        (
            CallForm.GEMMA,
            gemma_call("time", {"at": [1, {"b": -1.5}, "x", []], "c": {"d": None, "e": True, "f": {}}}),
            called(("time", '{"at": [1, {"b": -1.5}, "x", []], "c": {"d": null, "e": true, "f": {}}}')),
        ),
        # A value without quotes is JSON of the declared type, or text.
        (
            CallForm.GEMMA,
            "<|tool_call>call:weather{city:12,days:12,x:Oslo harbour,y:NaN,z:True}<tool_call|>",
            called(("weather", '{"city": "12", "days": 12, "x": "Oslo harbour", "y": "NaN", "z": "True"}')),
        ),
        # Quotes, braces, commas and the beginnings of markers within a string belong to it.
        (
            CallForm.GEMMA,
            gemma_call("weather", {"city": '"a"<|"<|"|, }<tool_call>\n\\'}),
            called(("weather", json.dumps({"city": '"a"<|"<|"|, }<tool_call>\n\\'}))),
        ),
        (CallForm.GEMMA, gemma_call("storm", {}), ParsedMessage(gemma_call("storm", {}))),
        (CallForm.GEMMA, f"<|tool_call>{CALL}<tool_call|>", ParsedMessage(f"<|tool_call>{CALL}<tool_call|>")),
        (CallForm.HERMES, f"<tool_call>{CALL}</tool_call>\n", called(OSLO)),
        (CallForm.HERMES, f"<tool_call>\n{CALL}", called(OSLO)),
        (CallForm.HERMES, f"<tool_call>\n{CALL[:-1]}", called(OSLO)),
        (CallForm.HERMES, f"<tool_call>\n{CALL}\n</tool_", called(OSLO)),
        (CallForm.HERMES, f"Let me look.\n<tool_call>{CALL}</tool_call>", called(OSLO, text="Let me look.\n")),
        (
            CallForm.HERMES,
            f'\n<tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "time"}}</tool_call>',
            called(OSLO, LATE),
        ),
        (
            CallForm.HERMES,
            f"<tool_call>{CALL}</tool_call> and\n<tool_call>{CALL}</tool_call>",
            called(OSLO, OSLO, text=" and\n"),
        ),
        (
            CallForm.HERMES,
            '<tool_call>{"id": [1, {"name": 2}], "arguments": {"a": "}"}, "name": "time", "n": -1.5e3}</tool_call>',
            called(("time", '{"a": "}"}')),
        ),
        (CallForm.LLAMA, '{"name": "weather", "parameters": {"city": "Oslo"}}', called(OSLO)),
        (CallForm.LLAMA, f"\n\n{CALL}; {CALL}\n", called(OSLO, OSLO)),
        (CallForm.LLAMA, f"<|python_tag|>{CALL}", called(OSLO)),
        (CallForm.LLAMA, f"It is {CALL}", ParsedMessage(f"It is {CALL}")),
        (CallForm.LLAMA, '{"a": 1} is JSON', ParsedMessage('{"a": 1} is JSON')),
        (CallForm.MISTRAL, f"[TOOL_CALLS] [{CALL}, {CALL}]", called(OSLO, OSLO)),
        (CallForm.MISTRAL, f"[TOOL_CALLS][{CALL[:-1]}, 'id': 1}}]", called(OSLO, text=", 'id': 1}]")),
        (CallForm.MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]time[ARGS]{}', called(OSLO, LATE)),
        (CallForm.MISTRAL, '[TOOL_CALLS]weather[CALL_ID]aB3[ARGS]{"city": "Oslo"}', called(OSLO)),
        (CallForm.MISTRAL, "[TOOL_CALLS]nothing[ARGS]{}", ParsedMessage("[TOOL_CALLS]nothing[ARGS]{}")),
        (None, f"[{CALL},{CALL}]", called(OSLO, OSLO)),
        (None, CALL, called(OSLO)),
    ],
)
def test_calls_are_read_in_their_form(form, text, expected):
    assert spoken(reader(form), text) == expected
    assert spoken(reader(form), *text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "a < b, <tool, </tool_call> and <tool_call",
        "<tool_call></tool_call>",
        "<tool_call>weather</tool_call>",
        '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "Oslo"}</tool_call>',
        '<tool_call>{"name": "weather" "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"a": 1}',
        '<tool_call>{"name": "wea',
        '<tool_call>{"arguments": {"a": 01}, "name": "time"}</tool_call>',
        '<tool_call>{"arguments": {"a": "\t"}, "name": "time"}</tool_call>',
        '<tool_call>{"arguments": {"a": "\\x"}, "name": "time"}</tool_call>',
        '<tool_call>{"arguments": {"a": nil}, "name": "time"}</tool_call>',
        '<tool_call>{"arguments": {"a": 1,}, "name": "time"}</tool_call>',
        '<tool_call>{"arguments": [{}], "name": "time"}</tool_call>',
        '<tool_call>{"arguments": {}, "name": }</tool_call>',
        '<tool_call>{"x": , "name": "time"}</tool_call>',
        "<tool_call>[" * 100,
    ],
)
def test_what_is_no_call_is_text_to_the_last_character(text):
    told = spoken(reader(CallForm.HERMES), text)
    if '"arguments": {"a": 1}' in text:  # it has begun, and its text ends
        assert told == called(("weather", '{"a": 1}'))
    else:
        assert told == ParsedMessage(text or None)


def test_a_call_may_follow_what_is_none():
    told = spoken(reader(CallForm.HERMES), f'<tool_call>{{"name": <tool_call>{CALL}</tool_call>')
    assert told == called(OSLO, text='<tool_call>{"name": ')


def test_arguments_that_go_wrong_are_never_finished():
    """Half of a call's arguments must not look like all of them."""
    told = spoken(reader(CallForm.HERMES), '<tool_call>{"name": "time", "arguments": {"a": "b", x}}</tool_call>')
    assert told == called(("time", '{"a": "b", '), text="x}}</tool_call>")


def test_a_call_that_is_cut_leaves_what_there_is_of_it():
    [[begun, arguments]] = pieces_of(reader(None), [CALL[:-5]], FinishReason.LENGTH)
    assert begun == CallBegun(0, "call_0", "weather")
    assert arguments == CallArguments(0, '{"city": "Os')


def test_what_is_said_comes_out_at_once():
    parts = ["Hello", " <", "b> ", "<tool_", 'call>{"name": "weather", ', '"arguments": {', '"city"', ': "Oslo"}}', ""]
    assert pieces_of(reader(CallForm.HERMES), parts) == [
        [Text("Hello")],
        [Text(" ")],
        [Text("<b> ")],
        [],
        [],
        [CallBegun(0, "call_0", "weather"), CallArguments(0, "{")],
        [CallArguments(0, '"city"')],
        [CallArguments(0, ': "Oslo"}')],
        [],
    ]


def test_no_more_calls_are_told_than_are_wanted():
    text = f"<tool_call>{CALL}</tool_call>" * 3
    assert spoken(reader(CallForm.HERMES, most=1), text) == called(OSLO)
