"""Prompts with tools and calls, by the capabilities of the chat template."""

import pytest

from engine.text.dialect import CallForm, Dialect
from gateway.speech.prompting import shown
from gateway.speech.tools import Tool

WEATHER = Tool("weather", None, {"type": "object", "properties": {"city": {"type": "string"}}})
KNOWS = Dialect(knows_tools=True)
KNOWS_NOT = Dialect()
USER = {"role": "user", "content": "hi"}


def call(id: str, city: str) -> dict[str, object]:
    return {"id": id, "type": "function", "function": {"name": "weather", "arguments": {"city": city}}}


TALK = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [call("call_a", "Oslo"), call("call_b", "Åre")]},
    {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
    {"role": "tool", "tool_call_id": "call_b", "content": [{"type": "text", "text": "snow"}]},
    {"role": "assistant", "content": "Rain and snow."},
]


def test_a_template_that_knows_tools_gets_all_as_it_is():
    messages, variables = shown(TALK, [WEATHER], KNOWS)
    assert messages == TALK
    [declared] = variables["tools"]
    assert declared == {
        "type": "function",
        "function": {"name": "weather", "description": "", "parameters": WEATHER.parameters},
    }
    assert shown(TALK, [], KNOWS) == (TALK, {})


def test_to_another_calls_and_results_are_text():
    messages, variables = shown(TALK, [], KNOWS_NOT)
    assert variables == {}
    assert [(message["role"], message["content"]) for message in messages] == [
        ("user", "hi"),
        (
            "assistant",
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Åre"}}\n</tool_call>',
        ),
        ("user", "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsnow\n</tool_response>"),
        ("assistant", "Rain and snow."),
    ]
    assert all("tool_calls" not in message for message in messages)


def test_a_conversation_without_tools_is_left_alone():
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert shown(parts, [], KNOWS_NOT) == (parts, {})


@pytest.mark.parametrize(
    ("messages", "dialect", "roles", "place", "start", "end"),
    [
        ([USER], KNOWS_NOT, ["system", "user"], 0, "You may call", "</tool_call>"),
        ([{"role": "system", "content": "Be brief."}, USER], KNOWS_NOT, ["system", "user"], 0, "Be brief.\n\nYou", ">"),
        (
            [{"role": "developer", "content": [{"type": "text", "text": "{0}"}]}, USER],
            KNOWS_NOT,
            ["developer", "user"],
            0,
            "{0}\n\nYou",
            ">",
        ),
        ([USER], Dialect(takes_system=False), ["user"], 0, "You may call", "\n\nhi"),
        ([], Dialect(takes_system=False), ["user"], 0, "You may call", ">"),
    ],
)
def test_where_tools_are_declared_in_text(messages, dialect, roles, place, start, end):
    told, variables = shown(messages, [WEATHER], dialect)
    assert variables == {}
    assert [message["role"] for message in told] == roles
    text = told[place]["content"]
    assert text.startswith(start)
    assert text.endswith(end)
    assert '"name": "weather"' in text


def test_mistrals_templates_get_short_ids_that_match():
    messages, _ = shown(TALK, [WEATHER], Dialect(knows_tools=True, call_form=CallForm.MISTRAL))
    made = [each["id"] for each in messages[1]["tool_calls"]]
    answered = [message["tool_call_id"] for message in messages[2:4]]
    assert made == answered
    assert all(len(id) == 9 and id.isalnum() for id in made)
    assert len(set(made)) == 2
    assert TALK[2]["tool_call_id"] == "call_a"
    assert shown(messages, [], Dialect(knows_tools=True, call_form=CallForm.MISTRAL))[0] == messages


def test_a_template_that_takes_one_call_at_a_time_gets_them_so():
    other = {"role": "tool", "tool_call_id": "call_x", "content": "?"}
    talk = [*TALK[:4], other, *TALK[4:]]
    messages, _ = shown(talk, [], Dialect(knows_tools=True, takes_parallel_calls=False))
    seen = [(each["role"], [call["id"] for call in each.get("tool_calls", ())]) for each in messages]
    assert seen == [
        ("user", []),
        ("assistant", ["call_a"]),
        ("tool", []),
        ("assistant", ["call_b"]),
        ("tool", []),
        ("tool", []),
        ("assistant", []),
    ]
    assert [each["tool_call_id"] for each in messages if each["role"] == "tool"] == ["call_a", "call_b", "call_x"]
    assert shown(TALK[-1:], [], Dialect(knows_tools=True, takes_parallel_calls=False))[0] == TALK[-1:]
