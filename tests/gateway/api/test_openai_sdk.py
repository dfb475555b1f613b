"""OpenAI's own Python client, sync and async, against a real server."""

import openai
import pytest

from tests.gateway.api.conftest import KEY
from tests.gateway.api.fake_engine import FakeEngine

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def sdk(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
async def async_sdk(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk


def test_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["tiny", "org/tiny-2"]
    assert sdk.models.retrieve("tiny").owned_by == "turnpike"
    assert sdk.models.retrieve("org/tiny-2").context_window == 512


def test_chat(sdk):
    answer = sdk.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1, seed=1)
    assert answer.choices[0].message.content == "Hello, world!"
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "H"
    assert answer.usage.completion_tokens == 13
    assert answer._request_id.startswith("req_")


def test_streamed_chat(sdk):
    options = {"include_usage": True}
    with sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, stream_options=options) as stream:
        seen = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in seen if chunk.choices) == "Hello, world!"
    assert seen[-1].usage.total_tokens == seen[-1].usage.prompt_tokens + 13


def test_the_streaming_helper(sdk):
    with sdk.chat.completions.stream(model="tiny", messages=MESSAGES, n=2) as stream:
        contents = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert sorted("".join(contents)) == sorted("Hello, world!" * 2)
    assert [choice.message.content for choice in final.choices] == ["Hello, world!"] * 2


def test_completions(sdk):
    answer = sdk.completions.create(model="tiny", prompt=["a", "b"], echo=True, logprobs=1, max_tokens=2)
    assert [choice.text for choice in answer.choices] == ["aHe", "bHe"]
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    streamed = sdk.completions.create(model="tiny", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Hello, world!"


def test_raw_responses(sdk):
    raw = sdk.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES)
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.parse().model == "tiny"


def test_errors_have_their_classes(sdk, server):
    with pytest.raises(openai.NotFoundError) as unknown_model:
        sdk.chat.completions.create(model="nope", messages=MESSAGES)
    assert (unknown_model.value.code, unknown_model.value.param) == ("model_not_found", "model")
    assert unknown_model.value.request_id.startswith("req_")
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model="tiny", messages=MESSAGES, temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        sdk.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 600}])
    assert (long.value.param, long.value.code) == ("messages", "context_length_exceeded")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            stranger.models.list()
        assert refused.value.code == "invalid_api_key"


def test_a_failure_before_the_first_token_has_its_status(sdk, engine: FakeEngine):
    engine.fail_at = 0
    with pytest.raises(openai.InternalServerError):
        sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)


def test_a_failure_half_way_raises_from_the_stream(sdk, engine: FakeEngine):
    engine.fail_at = 3
    seen = []
    with (
        sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True) as stream,
        pytest.raises(openai.APIError, match="failed on this request"),
    ):
        for chunk in stream:
            seen.append(chunk.choices[0].delta.content)
    assert "".join(seen) == "Hel"


@pytest.mark.anyio
async def test_async(async_sdk):
    answer = await async_sdk.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello, world!"
    stream = await async_sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    async with stream:
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "Hello, world!"
    with pytest.raises(openai.BadRequestError):
        await async_sdk.chat.completions.create(model="tiny", messages=[])
