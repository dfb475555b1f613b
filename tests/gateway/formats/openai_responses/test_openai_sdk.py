"""`client.responses` of OpenAI's own Python client, sync and async, against a real server."""

import openai
import pytest
from pydantic import BaseModel

from tests.support.fake_engine import FakeEngine
from tests.support.gateway import KEY
from tests.support.responses_bodies import shown

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


class City(BaseModel):
    name: str
    population: int


@pytest.fixture
def engine() -> FakeEngine:
    """With room for tools, a byte a token."""
    return FakeEngine({"tiny": 8192})


def test_create(sdk, engine):
    response = sdk.responses.create(model="tiny", input="Where?", instructions="be brief")
    assert (response.output_text, response.status) == ("Hello, world!", "completed")
    assert (response.usage.output_tokens, response.usage.input_tokens_details.cached_tokens) == (13, 1)
    assert response._request_id.startswith("req_")
    assert shown(engine) == "<system>be brief\n<user>Where?\n"


def test_stream(sdk):
    with sdk.responses.create(model="tiny", input="Where?", stream=True) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello, world!"
    assert events[-1].response.output_text == "Hello, world!"


def test_the_streaming_helper_ends_with_the_whole_answer(sdk):
    with sdk.responses.stream(model="tiny", input="Where?") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == "Hello, world!"
    stored = sdk.responses.retrieve(final.id).to_dict()
    final = final.to_dict()
    for part in final["output"][0]["content"]:
        part.pop("parsed", None)
    assert final == stored


def test_parse(sdk, engine: FakeEngine):
    engine.reply = '{"name": "Rome", "population": 2800000}'
    response = sdk.responses.parse(model="tiny", input="A city?", text_format=City)
    assert response.output_parsed == City(name="Rome", population=2_800_000)
    assert engine.calls[-1].params.grammar.param == "text.format.schema"
    with sdk.responses.stream(model="tiny", input="A city?", text_format=City) as stream:
        stream.until_done()
        assert stream.get_final_response().output_parsed == City(name="Rome", population=2_800_000)


def test_a_round_trip_of_tools(sdk, engine: FakeEngine):
    engine.reply = CALL
    asked = [{"role": "user", "content": "1 + 2?"}]
    response = sdk.responses.create(model="tiny", input=asked, tools=[TOOL], store=False)
    [call] = response.output
    assert (call.type, call.name, call.arguments) == ("function_call", "add", '{"a": 1, "b": 2}')
    engine.reply = "3"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    answer = sdk.responses.create(model="tiny", input=[*asked, call, result], tools=[TOOL])
    assert answer.output_text == "3"
    assert answer.tools[0].to_dict() == TOOL


def test_a_round_trip_of_tools_by_what_is_stored(sdk, engine: FakeEngine):
    engine.reply = "I add." + CALL
    with sdk.responses.stream(model="tiny", input="1 + 2?", tools=[TOOL]) as stream:
        arguments = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        response = stream.get_final_response()
    said, call = response.output
    assert (said.content[0].text, call.arguments) == ("I add.", "".join(arguments))
    assert call.parsed_arguments == {"a": 1, "b": 2}
    engine.reply = "3"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    sdk.responses.create(model="tiny", input=[result], previous_response_id=response.id, tools=[TOOL])
    assert "<assistant>I add.\n<tool>3\n" in shown(engine)


def test_stored_responses(sdk, engine: FakeEngine):
    first = sdk.responses.create(model="tiny", input="Where?")
    assert sdk.responses.retrieve(first.id) == first
    second = sdk.responses.create(model="tiny", input="When?", previous_response_id=first.id)
    assert shown(engine) == "<user>Where?\n<assistant>Hello, world!\n<user>When?\n"
    assert [item.content[0].text for item in sdk.responses.input_items.list(second.id)] == ["When?"]
    sdk.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(first.id)


def test_all_pages_of_input_items(sdk):
    given = [{"role": "user", "content": f"{i}"} for i in range(5)]
    response = sdk.responses.create(model="tiny", input=given)
    pages = sdk.responses.input_items.list(response.id, limit=2, order="asc")
    assert [item.content[0].text for item in pages] == ["0", "1", "2", "3", "4"]


def test_errors_have_their_classes(sdk):
    with pytest.raises(openai.NotFoundError) as unknown:
        sdk.responses.create(model="tiny", input="x", previous_response_id="resp_x")
    assert (unknown.value.param, unknown.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.responses.create(model="tiny", input="x", tools=[{"type": "web_search"}])
    assert (refused.value.param, refused.value.code) == ("tools[0].type", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as long:
        sdk.responses.create(model="tiny", input="x" * 9000)
    assert (long.value.param, long.value.code) == ("input", "context_length_exceeded")


def test_a_failure_half_way_is_an_event(sdk, engine: FakeEngine):
    engine.fail_at = 3
    with sdk.responses.create(model="tiny", input="x", stream=True) as stream:
        *_, told, failed = stream
    assert (told.type, told.code) == ("error", "engine_error")
    assert (failed.type, failed.response.status, failed.response.error.code) == (
        "response.failed",
        "failed",
        "server_error",
    )


async def test_async(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        response = await sdk.responses.create(model="tiny", input="Where?")
        async with sdk.responses.stream(model="tiny", input="When?", previous_response_id=response.id) as stream:
            final = await stream.get_final_response()
        assert final.output_text == response.output_text


def test_a_turn_of_codex(sdk, engine: FakeEngine):
    """All that Codex states, its tools in a namespace among them."""
    said = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "id": "fc_1", "name": "add", "arguments": '{"a":1,"b":2}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
    ]
    with sdk.responses.create(
        model="tiny",
        instructions="You are a coding agent.",
        input=said,
        tools=[
            TOOL | {"strict": False},
            {"type": "namespace", "name": "agents", "description": "x" * 5000, "tools": [TOOL | {"name": "spawn"}]},
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="thread",
        extra_body={"client_metadata": {"x-codex-installation-id": "1"}},
    ) as stream:
        names = [event.type for event in stream]
    assert (names[0], names[-1]) == ("response.created", "response.completed")
