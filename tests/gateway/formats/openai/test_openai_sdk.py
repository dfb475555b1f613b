"""OpenAI's own Python client, sync and async, against a real server."""

import openai
import pydantic
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.gateway import KEY

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine({"tiny": 4096, "org/tiny-2": 512})


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
        sdk.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x" * 6000}])
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
        pytest.raises(openai.APIError) as failed,
    ):
        for chunk in stream:
            seen.append(chunk.choices[0].delta.content)
    assert "".join(seen) == "Hel"
    assert (failed.value.type, failed.value.code) == ("server_error", "engine_error")


async def test_async(async_sdk):
    answer = await async_sdk.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello, world!"
    stream = await async_sdk.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    async with stream:
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "Hello, world!"
    with pytest.raises(openai.BadRequestError):
        await async_sdk.chat.completions.create(model="tiny", messages=[])


class Weather(pydantic.BaseModel):
    """Looks outside."""

    city: str


CALL = '{"name":"Weather","arguments":{"city":"Oslo"}}'


def test_a_conversation_with_a_tool(sdk, engine: FakeEngine):
    tool = openai.pydantic_function_tool(Weather)
    engine.reply = f"<tool_call>\n{CALL}\n</tool_call>"
    parsed = sdk.chat.completions.parse(model="tiny", messages=MESSAGES, tools=[tool])
    [choice] = parsed.choices
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert call.function.parsed_arguments == Weather(city="Oslo")
    engine.reply = "Rain."
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    messages = [*MESSAGES, choice.message.model_dump(exclude={"parsed"}, exclude_none=True), result]
    for each in messages[1]["tool_calls"]:
        del each["function"]["parsed_arguments"]
    answer = sdk.chat.completions.create(model="tiny", messages=messages, tools=[tool])
    assert answer.choices[0].message.content == "Rain."


@pytest.mark.parametrize(
    ("choice", "reply"),
    [
        ("auto", f"Let me look.<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"),
        ("required", f"[{CALL},{CALL}]"),
    ],
)
def test_the_streaming_helper_with_tools(sdk, engine: FakeEngine, choice, reply):
    engine.reply = reply
    tool = openai.pydantic_function_tool(Weather)
    with sdk.chat.completions.stream(model="tiny", messages=MESSAGES, tools=[tool], tool_choice=choice) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert {event.index for event in deltas} == {0, 1}
    assert "".join(event.arguments_delta for event in deltas if event.index == 1) == '{"city":"Oslo"}'
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == [Weather(city="Oslo")] * 2
    [told] = final.choices
    assert told.finish_reason == "tool_calls"
    assert [call.function.parsed_arguments for call in told.message.tool_calls] == [Weather(city="Oslo")] * 2
    assert len({call.id for call in told.message.tool_calls}) == 2


def test_a_parsed_answer_streams(sdk, engine: FakeEngine):
    engine.reply = '{"city":"Oslo"}'
    with sdk.chat.completions.stream(model="tiny", messages=MESSAGES, response_format=Weather) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Weather(city="Oslo")
