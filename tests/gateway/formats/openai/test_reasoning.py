"""A model's reasoning in chats: separated from the answer, counted, and passed back to the template."""

import pytest

from engine.text.dialect import Dialect, Markers
from tests.support.fake_engine import FakeEngine
from tests.support.sse import chunks

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "now"}}]


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine({"tiny": 4096})
    engine.models["tiny"].text.dialect = Dialect(knows_tools=True, reasoning=Markers("<think>", "</think>"))
    return engine


def chat(client, **fields):
    response = client.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES} | fields)
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize(
    ("opened", "reply", "reasoning", "content", "tokens"),
    [
        (False, "<think>\nso\n</think>\n\nyes", "so", "yes", len("<think>\nso\n</think>")),
        (False, "yes", None, "yes", 0),
        (True, "so</think>yes", "so", "yes", len("so</think>")),
        (True, "so", "so", "", 2),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_told_apart_and_counted(client, engine, opened, reply, reasoning, content, tokens, stream):
    """It is opened by the prompt here, as it ends with the last message where there is no generation prompt."""
    engine.reply = reply
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>"}] if opened else MESSAGES
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = chat(client, messages=messages, add_generation_prompt=not opened, n=2, stream=stream, **options)
    if stream:
        *seen, last = chunks(response)
        usage = last["usage"]
        deltas = [[c["choices"][0]["delta"] for c in seen if c["choices"][0]["index"] == i] for i in range(2)]
        told = [
            (
                "".join(delta.get("reasoning_content", "") for delta in mine) or None,
                "".join(delta.get("content") or "" for delta in mine),
            )
            for mine in deltas
        ]
    else:
        usage = response.json()["usage"]
        messages = [choice["message"] for choice in response.json()["choices"]]
        told = [(message.get("reasoning_content"), message["content"]) for message in messages]
    assert told == [(reasoning, content)] * 2
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2 * tokens
    assert usage["completion_tokens"] == 2 * len(reply)


def test_a_model_thinks_and_then_calls(client, engine):
    engine.reply = '<think>so</think>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    [choice] = chat(client, tools=TOOLS).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_content"]) == ("tool_calls", "so")
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


def test_a_forced_call_may_come_behind_reasoning_that_is_marked_by_tokens(client, engine):
    """A grammar holds the answer behind the token that ends the reasoning."""
    markers = Markers("\x01", "\x02")
    engine.models["tiny"].text.dialect = Dialect(knows_tools=True, reasoning=markers, reasoning_ids=(1, 2))
    engine.reply = '\x01so\x02[{"name":"now","arguments":{}}]'
    [choice] = chat(client, tools=TOOLS, tool_choice="required").json()["choices"]
    assert choice["message"]["reasoning_content"] == "so"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


def test_completions_have_no_reasoning(client, engine):
    engine.reply = "<think>so</think>yes"
    body = client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 99}).json()
    assert body["choices"][0]["text"] == engine.reply
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    chat(client)
    assert [call.params.conversational for call in engine.calls] == [False, True]
