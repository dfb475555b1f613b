"""Messages over the real engine and a tiny model, by Anthropic's own client."""

import json

import anthropic
import jsonschema
import pytest
from starlette.testclient import TestClient

from tests.support.gateway import KEY
from tests.support.tiny_app import tiny_app

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"model": "tiny", "messages": QUESTION, "max_tokens": 12, "extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with TestClient(tiny_app(tmp_path_factory.mktemp("model")), headers={"x-api-key": KEY}) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(client):
    return anthropic.Anthropic(api_key=KEY, base_url="http://testserver", max_retries=0, http_client=client)


def text_of(message) -> str:
    return "".join(block.text for block in message.content)


def test_streamed_and_whole_are_the_same(sdk):
    whole = sdk.messages.create(**GREEDY)
    with sdk.messages.stream(**GREEDY) as stream:
        streamed = stream.get_final_message()
    assert text_of(streamed) == text_of(whole)
    assert whole.usage.output_tokens == streamed.usage.output_tokens == 12
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"


def test_all_of_the_prompt_is_counted_cached_or_not(sdk):
    prompt = {"model": "tiny", "system": "You are brief. " * 20, "messages": QUESTION}
    count = sdk.messages.count_tokens(**prompt).input_tokens
    first, second = (sdk.messages.create(**prompt, max_tokens=2).usage for _ in range(2))
    assert first.input_tokens + first.cache_read_input_tokens == count
    assert second.input_tokens + second.cache_read_input_tokens == count
    assert second.cache_read_input_tokens > 0


def test_a_stop_sequence_is_left_out_and_named(sdk):
    text = text_of(sdk.messages.create(**GREEDY))
    stop = text[3:5]
    message = sdk.messages.create(**GREEDY, stop_sequences=["never said", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == text[: text.index(stop)]


def test_an_answer_goes_on_with_its_beginning_as_in_chat(sdk, client):
    begun = [*QUESTION, {"role": "assistant", "content": "The capital"}]
    chat = {"model": "tiny", "messages": begun, "continue_final_message": True, "max_tokens": 12, "temperature": 0}
    said = client.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]
    assert text_of(sdk.messages.create(**GREEDY | {"messages": begun})) == said


def test_more_than_the_window_holds(sdk):
    message = sdk.messages.create(**GREEDY | {"max_tokens": 10_000})
    assert message.stop_reason in ("model_context_window_exceeded", "end_turn")


@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "pick"}]
)
def test_a_forced_call_is_valid_by_its_schema(sdk, choice):
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["red", "blue"]}, "ripe": {"type": "boolean"}},
        "required": ["kind", "ripe"],
        "additionalProperties": False,
    }
    tools = [{"name": "pick", "input_schema": schema}]
    asked = {"model": "tiny", "messages": [QUESTION[0]], "max_tokens": 80, "tools": tools, "tool_choice": choice}
    message = sdk.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    [call] = message.content
    assert call.name == "pick"
    jsonschema.validate(call.input, schema)
    counted = {name: asked[name] for name in ("model", "messages", "tools", "tool_choice")}
    count = sdk.messages.count_tokens(**counted).input_tokens
    assert count == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_an_answer_in_a_schema(sdk):
    schema = {"type": "object", "properties": {"ripe": {"type": "boolean"}}, "required": ["ripe"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "schema": schema}
    message = sdk.messages.create(**GREEDY | {"max_tokens": 40}, output_config={"format": form})
    assert message.stop_reason == "end_turn"
    jsonschema.validate(json.loads(text_of(message)), schema)
