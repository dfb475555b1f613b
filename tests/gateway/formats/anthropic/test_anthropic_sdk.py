"""Anthropic's own Python client, sync and async, against a real server."""

import anthropic
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.gateway import KEY

ASKED = {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def sdk(server):
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
async def async_sdk(server):
    async with anthropic.AsyncAnthropic(base_url=server.url, auth_token=KEY, max_retries=0) as sdk:
        yield sdk


def test_a_message(sdk):
    message = sdk.messages.create(**ASKED, system="be brief", metadata={"user_id": "u"})
    assert [block.text for block in message.content] == ["Hello, world!"]
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
    assert message.usage.output_tokens == 13
    assert message.id.startswith("msg_")
    assert message._request_id.startswith("req_")


def test_a_stream_of_raw_events(sdk):
    with sdk.messages.create(**ASKED, stream=True) as stream:
        seen = [event.type for event in stream]
    assert seen == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 13,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_the_streaming_helper(sdk):
    with sdk.messages.stream(**ASKED, stop_sequences=["world"]) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert message.content[0].text == text
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "world")
    whole = sdk.messages.create(**ASKED, stop_sequences=["world"])
    assert message.to_dict() | {"id": whole.id} == whole.to_dict()


def test_the_answer_goes_back_as_it_came(sdk, engine: FakeEngine):
    answer = sdk.messages.create(**ASKED)
    messages = [*ASKED["messages"], answer.to_param(), {"role": "user", "content": "more"}]
    sdk.messages.create(**ASKED | {"messages": messages})
    assert bytes(engine.calls[-1].prompt[1:]) == b"<user>hi\n<assistant>Hello, world!\n<user>more\n<assistant>"


def test_counting_is_what_the_message_uses(sdk):
    prompt = {"system": "be brief", "messages": ASKED["messages"], "model": "tiny"}
    count = sdk.messages.count_tokens(**prompt)
    used = sdk.messages.create(**prompt, max_tokens=1).usage
    assert count.input_tokens == used.input_tokens + used.cache_read_input_tokens


def test_errors_have_their_classes(sdk, server, engine: FakeEngine):
    with pytest.raises(anthropic.NotFoundError, match="nope") as unknown:
        sdk.messages.create(**ASKED | {"model": "nope"})
    assert unknown.value.body["error"]["type"] == "not_found_error"
    assert unknown.value.body["request_id"] == unknown.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        sdk.messages.create(**ASKED, extra_body={"temperature": 1.5})
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        sdk.messages.create(**ASKED | {"messages": [{"role": "user", "content": "x" * 600}]})
    with (
        anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(**ASKED)
    with pytest.raises(anthropic.ContentTooLargeError):
        sdk.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "x" * 300_000}])
    engine.wait_ms = engine.drain_ms = 10_000_000
    with pytest.raises(anthropic.OverloadedError) as busy:
        sdk.messages.create(**ASKED)
    assert int(busy.value.response.headers["retry-after"]) > 0


def test_a_failure_before_the_first_token_has_its_status(sdk, engine: FakeEngine):
    engine.fail_at = 0
    with pytest.raises(anthropic.InternalServerError):
        sdk.messages.create(**ASKED, stream=True)


def test_a_failure_half_way_raises_from_the_stream(sdk, engine: FakeEngine):
    engine.fail_at = 3
    seen = []
    with sdk.messages.stream(**ASKED) as stream, pytest.raises(anthropic.APIStatusError) as failed:
        for text in stream.text_stream:
            seen.append(text)
    assert "".join(seen) == "Hel"
    assert failed.value.body["error"]["type"] == "api_error"


async def test_async(async_sdk):
    message = await async_sdk.messages.create(**ASKED)
    async with async_sdk.messages.stream(**ASKED) as stream:
        text = "".join([part async for part in stream.text_stream])
        streamed = await stream.get_final_message()
    assert text == message.content[0].text == "Hello, world!"
    assert streamed.to_dict() | {"id": message.id} == message.to_dict()
    assert (await async_sdk.messages.count_tokens(model="tiny", messages=ASKED["messages"])).input_tokens == 21
    with pytest.raises(anthropic.BadRequestError):
        await async_sdk.messages.create(**ASKED | {"messages": []})


def test_betas_are_the_same(sdk):
    message = sdk.beta.messages.create(**ASKED, betas=["interleaved-thinking-2025-05-14"])
    with sdk.beta.messages.stream(**ASKED) as stream:
        streamed = stream.get_final_message()
    assert [block.text for block in message.content] == [block.text for block in streamed.content] == ["Hello, world!"]
    assert sdk.beta.messages.count_tokens(model="tiny", messages=ASKED["messages"]).input_tokens == 21
