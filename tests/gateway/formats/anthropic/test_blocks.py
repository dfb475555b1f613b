"""Anthropic's messages as the conversation that a chat template reads."""

import pytest

from gateway.formats.anthropic.blocks import take_conversation
from gateway.http.errors import APIError
from gateway.http.fields import Fields
from tests.support.gateway import USER

CALL = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": [1]}}
CALLED = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": {"a": [1]}}}
HINT = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(text: str, **others) -> dict:
    return {"type": "text", "text": text} | others


def result(content=None, **others) -> dict:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content} | others


def user(*blocks) -> dict:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks) -> dict:
    return {"role": "assistant", "content": list(blocks)}


def tool(content) -> dict:
    return {"role": "tool", "tool_call_id": "t1", "content": content}


def taken(*messages, **fields):
    return take_conversation(Fields({"messages": list(messages)} | fields), {})


def said(*messages, **fields) -> list[dict]:
    """The messages that the template reads."""
    return list(taken(*messages, **fields).messages)


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        ([user(text("hi", **HINT, citations=None))], [USER]),
        ([user(text("a"), text("b"))], [{"role": "user", "content": [text("a"), text("b")]}]),
        ([user(text("a"), text(""))], [{"role": "user", "content": "a"}]),
        ([USER, {"role": "user", "content": "b"}], [{"role": "user", "content": [text("hi"), text("b")]}]),
        ([{"role": "system", "content": "s"}, USER], [{"role": "system", "content": "s"}, USER]),
        ([USER, assistant(CALL), user(result("3"))], [USER, {"content": None, "tool_calls": [CALLED]}, tool("3")]),
        ([user(result([text("a"), text("b", **HINT)]), text("hi"))], [tool([text("a"), text("b")]), USER]),
        ([user(result(), result(""))], [tool(""), tool("")]),
        ([user(result("no", is_error=True))], [tool("Error:\nno")]),
        ([user(result(is_error=True))], [tool("Error:")]),
        ([user(result("3", is_error=False, **HINT))], [tool("3")]),
        (
            [assistant(text("I add."), CALL | HINT | {"caller": {"type": "direct"}}, CALL), USER],
            [{"content": "I add.", "tool_calls": [CALLED, CALLED]}, USER],
        ),
        (
            [
                assistant({"type": "thinking", "thinking": "Hm.", "signature": "s"}, text("So.")),
                assistant({"type": "redacted_thinking", "data": "x"}, {"type": "thinking", "thinking": "Ah."}, CALL),
                user(result("3")),
            ],
            [{"content": "So.", "tool_calls": [CALLED], "reasoning_content": "Hm.\nAh."}, tool("3")],
        ),
    ],
)
def test_messages(messages, seen):
    expected = [message if "role" in message else {"role": "assistant"} | message for message in seen]
    assert said(*messages) == expected


@pytest.mark.parametrize(
    ("system", "seen"),
    [
        (None, []),
        ("", []),
        ("be brief", ["be brief"]),
        ([text("be brief", **HINT)], ["be brief"]),
        ([text("a"), text("b")], [[text("a"), text("b")]]),
        ([text("x-anthropic-billing-header: cc_version=2; cch=1;"), text("a")], ["a"]),
        ("x-anthropic-billing-header: cc_version=2; cch=1;\na\nb", ["a\nb"]),
        ("mind x-anthropic-billing-header: in text", ["mind x-anthropic-billing-header: in text"]),
    ],
)
def test_the_system_prompt_stands_first(system, seen):
    assert said(USER, system=system) == [*({"role": "system", "content": each} for each in seen), USER]


def test_an_assistants_last_word_is_the_beginning_of_the_answer():
    taken_ = taken(USER, assistant({"type": "thinking", "thinking": "Hm."}, text("The "), text("sum")))
    assert taken_.messages[-1] == {"role": "assistant", "content": "The sum", "reasoning_content": "Hm."}
    assert (taken_.continue_final_message, taken_.add_generation_prompt) == (True, False)
    plain = taken(USER)
    assert (plain.continue_final_message, plain.add_generation_prompt) == (False, True)


@pytest.mark.parametrize("content", ["", [], [text("")]])
def test_a_last_word_that_says_nothing_is_none(content):
    conversation = taken(USER, {"role": "assistant", "content": content})
    assert list(conversation.messages) == [USER]
    assert conversation.add_generation_prompt


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "tool", "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([USER | {"name": "ann"}], "messages[0].name"),
        ([user()], "messages[0].content"),
        ([assistant()], "messages"),
        ([user("hi")], "messages[0].content[0]"),
        ([user({"text": "hi"})], "messages[0].content[0].type"),
        ([user(text("a"), {"type": "image", "source": {}})], "messages[0].content[1].type"),
        ([user({"type": "document", "source": {}})], "messages[0].content[0].type"),
        ([user(CALL)], "messages[0].content[0].type"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user(text(5))], "messages[0].content[0].text"),
        ([user(text("a", citations=[{}]))], "messages[0].content[0].citations"),
        ([user(text("a", cache_control="x"))], "messages[0].content[0].cache_control"),
        ([user(text("a", extra=1))], "messages[0].content[0].extra"),
        ([user({"type": "tool_result"})], "messages[0].content[0].tool_use_id"),
        ([user(result(5))], "messages[0].content[0].content"),
        ([user(result([{"type": "image"}]))], "messages[0].content[0].content[0].type"),
        ([user(result(is_error="yes"))], "messages[0].content[0].is_error"),
        ([assistant(result())], "messages[0].content[0].type"),
        ([assistant({"type": "tool_use", "name": "f", "input": {}})], "messages[0].content[0].id"),
        ([assistant({"type": "tool_use", "id": "t", "input": {}})], "messages[0].content[0].name"),
        ([assistant({"type": "tool_use", "id": "t", "name": "f"})], "messages[0].content[0].input"),
        ([assistant(CALL | {"input": "{}"})], "messages[0].content[0].input"),
        ([assistant(CALL | {"caller": {"type": "code_execution_20250825"}})], "messages[0].content[0].caller"),
        ([assistant({"type": "thinking", "signature": "s"})], "messages[0].content[0].thinking"),
        ([assistant({"type": "redacted_thinking", "data": 5})], "messages[0].content[0].data"),
        ([{"role": "system", "content": [CALL]}], "messages[0].content[0].type"),
        ([USER, assistant(CALL)], "messages[1]"),
    ],
)
def test_refusals_name_the_field(messages, param):
    with pytest.raises(APIError) as refusal:
        take_conversation(Fields({"messages": messages}), {})
    assert (refusal.value.status, refusal.value.param) == (400, param)


def test_blocks_that_are_not_served_are_refused_by_name():
    with pytest.raises(APIError) as refusal:
        said(user({"type": "image", "source": {}}))
    assert (refusal.value.status, refusal.value.param) == (400, "messages[0].content[0].type")
    assert all(kind in refusal.value.message for kind in ("image", "text", "tool_result"))
