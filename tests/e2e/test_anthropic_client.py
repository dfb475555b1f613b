"""Anthropic's Python client against the running program, without a change to it but its address."""

from collections.abc import AsyncIterator, Iterator

import anthropic
import httpx
import jsonschema
import pytest

from tests.support.program import Program

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ASKED = {"model": "smollm2", "max_tokens": 24, "messages": QUESTION, "extra_body": {"temperature": 0}}
ANSWER = "The capital of France is Paris."
LOOK_UP = {
    "name": "look_up",
    "description": "Look up a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "is_capital": {"type": "boolean"}},
        "required": ["city", "is_capital"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(program: Program) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=program.url, api_key=program.key, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(program: Program) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=program.url, auth_token=program.key, max_retries=0) as client:
        yield client


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASKED)
    assert [block.text for block in message.content] == [ANSWER]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 8)
    count = client.messages.count_tokens(model="smollm2", messages=QUESTION)
    assert count.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens == 37


async def test_async_streamed(async_client: anthropic.AsyncAnthropic) -> None:
    async with async_client.messages.stream(**ASKED) as stream:
        assert "".join([text async for text in stream.text_stream]) == ANSWER
        assert (await stream.get_final_message()).stop_reason == "end_turn"


def test_an_answer_that_has_begun(client: anthropic.Anthropic) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    message = client.messages.create(**ASKED | {"messages": begun})
    assert [block.text for block in message.content] == [" Paris."]


ONE = {"type": "any", "disable_parallel_tool_use": True}


@pytest.mark.parametrize("choice", [ONE, {"type": "tool", "name": "look_up"}])
def test_a_forced_call_is_valid_by_its_schema(client: anthropic.Anthropic, choice: dict[str, object]) -> None:
    asked = ASKED | {"max_tokens": 80, "tools": [LOOK_UP], "tool_choice": choice}
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    message = client.messages.create(**asked)
    assert message.stop_reason == streamed.stop_reason == "tool_use"
    assert [(block.name, block.input) for block in message.content] == [
        (block.name, block.input) for block in streamed.content
    ]
    for block in message.content:
        jsonschema.validate(block.input, LOOK_UP["input_schema"])


def test_a_key_in_x_api_key_alone(program: Program) -> None:
    body = {"model": "tiny", "max_tokens": 1, "messages": QUESTION}
    headers = {"x-api-key": program.key, "anthropic-version": "2023-06-01"}
    assert httpx.post(f"{program.url}/v1/messages", json=body, headers=headers, timeout=30).status_code == 200
    refused = httpx.post(f"{program.url}/v1/messages", json=body, headers={"x-api-key": "wrong"})
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    assert refused.json()["request_id"] == refused.headers["request-id"]
