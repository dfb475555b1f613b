"""The official Python client against the running program."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import httpx
import jsonschema
import openai
import pytest

from tests.support.program import Program

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture
async def async_client(program: Program) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{program.url}/v1", api_key=program.key, max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, **GREEDY)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (37, 8)


def test_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2", messages=QUESTION, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "The capital of France is Paris."
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


async def test_async_chat_streamed_and_not(async_client: openai.AsyncOpenAI) -> None:
    whole = await async_client.chat.completions.create(model="smollm2", messages=QUESTION, **GREEDY)
    stream = await async_client.chat.completions.create(model="smollm2", messages=QUESTION, stream=True, **GREEDY)
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(parts) == whole.choices[0].message.content


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="smollm2", prompt="The capital of France is", **GREEDY)
    parts = client.completions.create(model="smollm2", prompt="The capital of France is", stream=True, **GREEDY)
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    echoed = client.completions.create(
        model="smollm2", prompt=["One two", "three"], echo=True, max_tokens=0, logprobs=2
    )
    assert [choice.text for choice in echoed.choices] == ["One two", "three"]
    logprobs = echoed.choices[0].logprobs
    assert logprobs.tokens == ["One", " two"]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None


PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}


def test_structured_outputs(client: openai.OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE}}
    for settings in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}):
        answer = client.chat.completions.create(
            model="smollm2", messages=QUESTION, response_format=wanted, max_tokens=80, **settings
        )
        assert answer.choices[0].finish_reason == "stop"
        jsonschema.validate(json.loads(answer.choices[0].message.content), PLACE)
    choice = client.completions.create(
        model="smollm2",
        prompt="The capital of France is",
        extra_body={"structured_outputs": {"choice": [" Paris", " Berlin"]}},
        **GREEDY,
    )
    assert choice.choices[0].text == " Paris"
    refused = {"type": "json_schema", "json_schema": {"name": "odd", "schema": {"not": PLACE}}}
    with pytest.raises(openai.BadRequestError, match='"not"') as odd:
        client.chat.completions.create(model="smollm2", messages=QUESTION, response_format=refused)
    assert odd.value.param == "response_format.json_schema.schema"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2", "tiny"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_errors_are_the_clients_own(program: Program, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x " * 600}])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    wrong = program.key[:-1] + ("a" if program.key[-1] != "a" else "b")
    with openai.OpenAI(base_url=f"{program.url}/v1", api_key=wrong, max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as unknown:
            stranger.models.list()
        assert unknown.value.code == "invalid_api_key"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_client_that_drops_its_connection_frees_its_blocks(program: Program, path: str) -> None:
    body = {"model": "tiny", "stream": True, "max_tokens": 400, "ignore_eos": True, "n": 4}
    body |= {"messages": QUESTION} if "chat" in path else {"prompt": "Once"}
    headers = {"Authorization": f"Bearer {program.key}"}
    with httpx.Client(timeout=30) as http:
        for _ in range(5):
            with http.stream("POST", f"{program.url}{path}", json=body, headers=headers) as response:
                assert response.status_code == 200
                next(response.iter_lines())
    program.wait_idle()


def test_a_client_that_gives_up_waiting_frees_its_blocks(program: Program) -> None:
    body = {"model": "smollm2", "messages": QUESTION, "max_tokens": 4000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{program.url}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {program.key}"},
            timeout=0.5,
        )
    program.wait_idle()


async def test_64_streams_at_once_equal_their_single_runs(program: Program, async_client: openai.AsyncOpenAI) -> None:
    async def run(index: int) -> str:
        stream = await async_client.chat.completions.create(
            model="tiny" if index % 4 else "smollm2",
            messages=[{"role": "user", "content": f"Tell me about the number {index}."}],
            stream=True,
            temperature=0 if index % 2 else 0.8,
            seed=index,
            max_tokens=8 + index % 9,
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    alone = [await run(index) for index in range(64)]
    together = await asyncio.gather(*(run(index) for index in range(64)))
    assert together == alone
    assert len(set(alone)) > 40
    program.wait_idle()


def test_a_revoked_key_stops(program: Program) -> None:
    """How soon is held on a clock of the test's own, in tests/gateway/tenancy/test_authenticator.py."""
    key = program.command("key", "create", "--tenant", "acme")
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx.get(f"{program.url}/v1/models", headers=headers).status_code == 200
    program.command("key", "revoke", key.split("-")[1])
    deadline = time.monotonic() + 60
    while httpx.get(f"{program.url}/v1/models", headers=headers).status_code != 401:
        assert time.monotonic() < deadline, "a revoked key still works"
        time.sleep(0.1)


def test_logs_hold_no_key_and_no_prompt(program: Program, client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "a very private sentence"}], max_tokens=2
    )
    log = program.log.read_text()
    assert "acme" in log
    assert program.key.split("-", 2)[2] not in log
    assert "private" not in log
