"""Promises of reading calls out of text: in every form, for any split into deltas, and with text that resembles one."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import FinishReason
from engine.text.dialect import CallForm, Markers
from gateway.speech.call_forms import FORMS
from gateway.speech.pieces import CallArguments, CallBegun, ParsedMessage, Reasoning, Text
from tests.gateway.speech.reading import (
    BEGIN,
    CALL,
    END,
    LATE,
    NAMES,
    OSLO,
    called,
    gemma_call,
    glm,
    pieces_of,
    reader,
    spoken,
    thinking,
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


NASTY = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "<tool_call", "<tool_", "<", "</", ">", "call>"),
            *("[TOOL_CALLS]", "[TOOL_", "[ARGS]", "[CALL_ID]", "[", "]", "<|python_tag|>", "<|python"),
            *('{"name": "weather", "arguments": {"city": "Oslo"}}', '{"name":"time"}', '{"name": "nothing"}'),
            *('{"parameters": {"a": [1, {"b": "\\u00e9\\""}]}, "name": "time"}', "weather", "time", "a", " "),
            *("{", "}", '"', '"name"', '"arguments"', ":", ",", ";", "\\", "\n", "1", "-", "true", "é", "\U0001f600"),
            *("<think>", "</think>", "<think", "</thi"),
            *(
                "<function=weather>",
                "<function=",
                "<parameter=city>",
                "<parameter=days>",
                "</parameter>",
                "</function>",
            ),
            *(
                BEGIN,
                END,
                "<｜tool▁call▁begin｜>",
                "<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
                "function",
                "\n```json\n",
                "```",
            ),
        ]
    ),
    max_size=30,
).map("".join)
FORM = st.sampled_from([*FORMS, None])
WITH_ANY_KEYS = FORM.filter(lambda form: form not in (CallForm.MINIMAX, CallForm.QWEN_XML))
"""Forms in which a key may be any text."""


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=20)))
    return [text[start:end] for start, end in itertools.pairwise([0, *places, len(text)])]


@settings(max_examples=400, deadline=None)
@given(NASTY, FORM, st.booleans(), st.data())
def test_however_a_text_is_cut_it_says_the_same(text, form, opened, data):
    parts = data.draw(cut(text))
    assert spoken(reader(form), *parts) == spoken(reader(form), text)
    whole = spoken(thinking(opened, reader(form)), text)
    assert spoken(thinking(opened, reader(form)), *parts) == whole
    assert spoken(thinking(opened, reader(form)), *text) == whole


@settings(max_examples=400, deadline=None)
@given(NASTY, FORM)
def test_nothing_is_made_up_and_without_calls_nothing_is_lost(text, form):
    told = spoken(reader(form), text)
    rest = text
    for call in told.calls:
        assert call.name in NAMES
        if call.arguments != "{}":
            assert call.arguments in rest
            rest = rest.replace(call.arguments, "", 1)
    if not told.calls:
        assert (told.text or "") == text
    chars = iter(text)
    assert all(char in chars for char in told.text or ""), "what is text stands there in its order"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(sorted(NAMES)), st.dictionaries(st.text(max_size=8), JSON, max_size=3)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=200, deadline=None)
@given(CALLS, WITH_ANY_KEYS, st.booleans(), st.sampled_from([None, 2]), st.data())
def test_whatever_the_arguments_are_they_are_told_whole(calls, form, ascii_only, indent, data):
    written = [
        json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only, indent=indent)
        for name, arguments in calls
    ]
    match form:
        case CallForm.HERMES:
            text = "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in written)
        case CallForm.LLAMA:
            text = "; ".join(written)
        case CallForm.MISTRAL:
            text = f"[TOOL_CALLS] [{', '.join(written)}]"
        case CallForm.DEEPSEEK:
            write = v3 if indent else v31
            each = (write(name, json.dumps(arguments, ensure_ascii=ascii_only)) for name, arguments in calls)
            text = BEGIN + "\n".join(each) + END
        case CallForm.GEMMA:
            text = "".join(gemma_call(name, arguments, quoted_keys=True) for name, arguments in calls)
        case CallForm.GLM:
            text = "\n".join(
                f"<tool_call>{name}\n"
                + "".join(
                    glm(key, json.dumps(value, ensure_ascii=ascii_only, indent=indent))
                    for key, value in arguments.items()
                )
                + "</tool_call>"
                for name, arguments in calls
            )
        case _:
            text = f"[{', '.join(written)}]"
    told = spoken(reader(form), *data.draw(cut(text)))
    assert told.text is None
    assert [(call.name, json.loads(call.arguments)) for call in told.calls] == calls


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab<>/think_toolcall{}[] \n", max_size=40), FORM, st.data())
def test_text_without_a_call_is_what_it_was(text, form, data):
    told = spoken(reader(form), *data.draw(cut(text)))
    assert told == ParsedMessage(text or None)


@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        (False, "<think>\nso\n</think>\n\nyes", ParsedMessage("yes", "so")),
        (False, "\n<think>so</think>", ParsedMessage(None, "so")),
        (False, "<think>so", ParsedMessage(None, "so")),
        (False, "yes <think>so</think>", ParsedMessage("yes <think>so</think>")),
        (False, "<thi", ParsedMessage("<thi")),
        (False, "<think></think>yes", ParsedMessage("yes")),
        (True, "\nso it\n\nis </thin", ParsedMessage(None, "so it\n\nis </thin")),
        (True, "so</think>yes </think>", ParsedMessage("yes </think>", "so")),
        (True, f"so</think>\n\n<tool_call>{CALL}</tool_call>", ParsedMessage(None, "so", called(OSLO).calls)),
        (True, f"so <tool_call>{CALL}</tool_call>", ParsedMessage(None, f"so <tool_call>{CALL}</tool_call>")),
    ],
)
def test_reasoning_is_a_span_at_the_beginning(opened, text, expected):
    for parts in ([text], list(text)):
        assert spoken(thinking(opened, reader(CallForm.HERMES)), *parts) == expected


@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        (False, "<|channel>thought\nso\n<channel|>yes", ParsedMessage("yes", "so")),
        (False, "<|channel>thought\n<channel|>yes", ParsedMessage("yes")),
        (False, "<|channel>thought<channel|>yes", ParsedMessage("yes")),
        (False, "<|channel>though<channel|>yes", ParsedMessage("yes", "though")),
        (False, "<|channel>", ParsedMessage()),
        (False, "<|channel>tho", ParsedMessage(None, "tho")),
        (False, "<|channel>thought", ParsedMessage()),
        (False, "<|channel>thoughtful", ParsedMessage(None, "ful")),
        (False, "<|channel>\nthought\nthought", ParsedMessage(None, "thought")),
        (True, "thought of it<channel|>yes", ParsedMessage("yes", "thought of it")),
        (
            False,
            "<|channel>thought\nso\n<channel|>" + gemma_call("weather", {"city": "Oslo"}),
            ParsedMessage(None, "so", called(OSLO).calls),
        ),
    ],
)
def test_the_label_of_a_channel_is_no_reasoning(opened, text, expected):
    channel = Markers("<|channel>", "<channel|>", "thought")
    for parts in ([text], list(text)):
        assert spoken(thinking(opened, reader(CallForm.GEMMA), channel), *parts) == expected


def test_reasoning_comes_out_at_once():
    parts = ["so ", "it", " </thi", "nk>\n", "\nyes", ""]
    assert pieces_of(thinking(True, reader(CallForm.HERMES)), parts) == [
        [Reasoning("so")],
        [Reasoning(" it")],
        [],
        [],
        [Text("yes")],
        [],
    ]
