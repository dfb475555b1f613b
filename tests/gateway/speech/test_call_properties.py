"""Properties of reading calls out of text: for any split into deltas, any arguments, and text that resembles a call."""

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.dialect import CallForm
from gateway.speech.call_forms import FORMS
from gateway.speech.pieces import ParsedMessage
from tests.gateway.speech.reading import BEGIN, END, NAMES, gemma_call, glm, reader, spoken, thinking, v3, v31

NASTY = st.lists(
    st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", "<tool_call", "<tool_", "<", "</", ">", "call>"),
            *("[TOOL_CALLS]", "[TOOL_", "[ARGS]", "[CALL_ID]", "[", "]", "<|python_tag|>", "<|python"),
            *('{"name": "weather", "arguments": {"city": "Oslo"}}', '{"name":"time"}', '{"name": "nothing"}'),
            *('{"parameters": {"a": [1, {"b": "\\u00e9\\""}]}, "name": "time"}', "weather", "time", "a", " "),
            *("{", "}", '"', '"name"', '"arguments"', ":", ",", ";", "\\", "\n", "1", "-", "true", "é", "\U0001f600"),
            *("<think>", "</think>", "<think", "</thi"),
            *("<|tool_call>", "<tool_call|>", "<|tool_", "call:weather{", '<|"|>', '<|"', "city:", "days:2"),
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
