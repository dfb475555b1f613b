"""Tools by Anthropic's own client: told to the model, called, and their results handed back."""

import json

import anthropic
import pytest
from starlette.testclient import TestClient

from engine.text.dialect import CallForm, Dialect, Markers
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import KEY

TOOL = {
    "name": "weather",
    "description": "Looks outside.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION = [{"role": "user", "content": "How is Oslo?"}]
ASKED = {"model": "tiny", "max_tokens": 500, "messages": QUESTION, "tools": [TOOL]}
CALL = '{"name":"weather","arguments":{"city":"Oslo"}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine({"tiny": 4096})


@pytest.fixture
def sdk(app):
    with TestClient(app) as client:
        yield anthropic.Anthropic(api_key=KEY, base_url="http://testserver", max_retries=0, http_client=client)


def answers(sdk, **fields) -> list:
    """Whole and streamed."""
    whole = sdk.messages.create(**ASKED | fields)
    with sdk.messages.stream(**ASKED | fields) as stream:
        return [whole, stream.get_final_message()]


def said(message) -> list[tuple]:
    kinds = {"text": ("text",), "thinking": ("thinking",), "tool_use": ("name", "input")}
    return [tuple(getattr(block, name) for name in kinds[block.type]) for block in message.content]


@pytest.mark.parametrize(
    ("choice", "reply", "blocks"),
    [
        ({"type": "auto"}, TAGGED, [("weather", {"city": "Oslo"})]),
        ({"type": "auto"}, f"I look.\n{TAGGED}", [("I look.\n",), ("weather", {"city": "Oslo"})]),
        ({"type": "any"}, f"[{CALL},{CALL}]", [("weather", {"city": "Oslo"})] * 2),
        ({"type": "any", "disable_parallel_tool_use": True}, CALL, [("weather", {"city": "Oslo"})]),
        ({"type": "tool", "name": "weather"}, CALL, [("weather", {"city": "Oslo"})]),
    ],
)
def test_calls_are_blocks(sdk, engine, choice, reply, blocks):
    engine.reply = reply
    for message in answers(sdk, tool_choice=choice):
        assert said(message) == blocks
        assert message.stop_reason == "tool_use"
        ids = [block.id for block in message.content if block.type == "tool_use"]
        assert len(set(ids)) == len(ids)


def test_no_call_is_read_where_none_may_be_made(sdk, engine):
    engine.reply = TAGGED
    for message in answers(sdk, tool_choice={"type": "none"}):
        assert said(message) == [(TAGGED,)]
        assert message.stop_reason == "end_turn"


def test_forced_arguments_are_valid_by_the_tools_schema_without_strict(sdk, engine):
    sdk.messages.create(**ASKED, tool_choice={"type": "tool", "name": "weather"})
    assert json.loads(engine.calls[-1].params.grammar.source)["$defs"]["tool0"] == TOOL["input_schema"] | {
        "additionalProperties": False
    }


def test_a_cut_call_is_there_as_far_as_it_goes(sdk, engine):
    engine.reply = f"[{CALL}]"
    for message in answers(sdk, tool_choice={"type": "any"}, max_tokens=len(CALL) - 4):
        assert message.stop_reason == "max_tokens"
        assert [block.name for block in message.content] == ["weather"]


def test_a_conversation_with_results(sdk, engine):
    engine.models["tiny"].text.dialect = Dialect()
    engine.reply = TAGGED
    first = sdk.messages.create(**ASKED)
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": [{"type": "text", "text": "sun"}]}
    engine.reply = "It is sunny."
    messages = [*QUESTION, first.to_param(), {"role": "user", "content": [result]}]
    second = sdk.messages.create(**ASKED | {"messages": messages})
    assert said(second) == [("It is sunny.",)]
    prompt = bytes(engine.calls[-1].prompt[1:]).decode()
    assert '"name": "weather"' in prompt
    assert prompt.index("How is Oslo?") < prompt.index('"arguments": {"city": "Oslo"}') < prompt.index("sun\n</tool_")


@pytest.mark.parametrize("choice", ["auto", "any", "none"])
def test_counting_counts_the_tools(sdk, choice):
    prompt = {"model": "tiny", "messages": QUESTION, "tools": [TOOL], "tool_choice": {"type": choice}}
    used = sdk.messages.create(**prompt, max_tokens=5).usage
    assert sdk.messages.count_tokens(**prompt).input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_thinking_comes_first(sdk, engine):
    engine.models["tiny"].text.dialect = Dialect(call_form=CallForm.HERMES, reasoning=Markers("<think>", "</think>"))
    engine.reply = f"<think>\nI look outside.\n</think>\n\nSo:\n{TAGGED}"
    for message in answers(sdk):
        assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
        assert message.content[0].thinking == "I look outside."
        assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens
        assert message.stop_reason == "tool_use"
    for message in answers(sdk, thinking={"type": "adaptive", "display": "omitted"}):
        assert message.content[0].thinking == ""
