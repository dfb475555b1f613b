"""OpenAI's older form of tools: functions, their calls, and their results in a conversation."""

import pytest
from starlette.testclient import TestClient

from tests.support.error_envelope import error_of
from tests.support.fake_engine import FakeEngine
from tests.support.sse import chunks

USER = {"role": "user", "content": "hi"}
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALL = '{"name":"weather","arguments":{"city":"Oslo"}}'
ARGUMENTS = '{"city":"Oslo"}'


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine({"tiny": 4096})


def chat(client: TestClient, **fields: object):
    body = {"model": "tiny", "messages": [USER], "functions": [WEATHER]}
    return client.post("/v1/chat/completions", json=body | fields)


def prompt_of(engine: FakeEngine) -> str:
    return bytes(token for token in engine.calls[-1].prompt if token < 256).decode()


@pytest.mark.parametrize(
    ("choice", "reply"), [("auto", f"<tool_call>\n{CALL}\n</tool_call>"), ({"name": "weather"}, CALL)]
)
def test_a_call_comes_back_in_the_form_of_its_declaration(client, engine, choice, reply) -> None:
    engine.reply = reply
    [whole] = chat(client, function_call=choice).json()["choices"]
    assert whole["message"]["function_call"] == {"name": "weather", "arguments": ARGUMENTS}
    assert (whole["finish_reason"], whole["message"]["content"]) == ("function_call", None)
    assert "tool_calls" not in whole["message"]
    streamed = [chunk["choices"][0] for chunk in chunks(chat(client, function_call=choice, stream=True))]
    first, *rest = [each["delta"]["function_call"] for each in streamed if "function_call" in each["delta"]]
    assert first == {"name": "weather", "arguments": ""}
    assert "".join(each["arguments"] for each in rest) == ARGUMENTS
    assert streamed[-1]["finish_reason"] == "function_call"


def test_the_prompt_is_that_of_tools(client, engine) -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": ARGUMENTS}}
    chat(client, messages=[USER, called, {"role": "function", "name": "weather", "content": "rain"}])
    older = prompt_of(engine)
    tool_call = {"id": "call_0", "type": "function", "function": called["function_call"]}
    said = {"role": "assistant", "content": None, "tool_calls": [tool_call]}
    result = {"role": "tool", "tool_call_id": "call_0", "name": "weather", "content": "rain"}
    tools = [{"type": "function", "function": WEATHER}]
    chat(client, functions=None, tools=tools, messages=[USER, said, result])
    assert older == prompt_of(engine)
    assert "weather" in older


def test_no_function_is_shown_where_none_may_be_called(client, engine) -> None:
    assert chat(client, function_call="none").status_code == 200
    assert "weather" not in prompt_of(engine)


def test_an_answer_can_be_sent_back_as_it_is(client, engine) -> None:
    engine.reply = CALL
    answer = chat(client, function_call={"name": "weather"}).json()["choices"][0]["message"]
    result = {"role": "function", "name": "weather", "content": "rain"}
    assert chat(client, messages=[USER, answer, result]).status_code == 200


def test_a_result_without_its_call_is_taken(client) -> None:
    """Of a conversation whose beginning was cut."""
    assert chat(client, messages=[{"role": "function", "name": "weather", "content": "rain"}]).status_code == 200


@pytest.mark.parametrize(
    "refused", [{"content": None, "refusal": "No."}, {"content": [{"type": "refusal", "refusal": "No."}]}]
)
def test_a_refusal_in_the_conversation_is_what_the_assistant_said(client, engine, refused) -> None:
    assert chat(client, functions=None, messages=[USER, {"role": "assistant"} | refused, USER]).status_code == 200
    assert "No." in prompt_of(engine)


@pytest.mark.parametrize(("body", "param"), [
    ({"functions": "f"}, "functions"),
    ({"functions": [{}]}, "functions[0].name"),
    ({"functions": [WEATHER, WEATHER]}, "functions[1].name"),
    ({"functions": [WEATHER | {"other": 1}]}, "functions[0].other"),
    ({"function_call": "required"}, "function_call"),
    ({"function_call": {"name": "time"}}, "function_call.name"),
    ({"function_call": {"name": "weather", "other": 1}}, "function_call.other"),
    ({"functions": [], "function_call": "auto"}, "function_call"),
    ({"tools": [{"type": "function", "function": WEATHER}]}, "functions"),
    ({"messages": [{"role": "function", "content": "rain"}]}, "messages[0].name"),
    ({"messages": [USER, {"role": "assistant", "function_call": {"name": "f", "arguments": "{"}}]},
     "messages[1].function_call.arguments"),
])  # fmt: skip
def test_what_is_refused_before_any_work(client, engine, body, param) -> None:
    assert error_of(chat(client, **body), 400)["param"] == param
    assert not engine.calls
