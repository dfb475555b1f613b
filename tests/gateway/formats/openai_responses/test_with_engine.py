"""`client.responses` over the real engine and a tiny model, on a real port."""

import json

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.gateway import KEY, serving
from tests.support.tiny_app import tiny_app

GREEDY = {"model": "tiny", "temperature": 0, "max_output_tokens": 24}
BLOCK_TOKENS = 16


class Place(BaseModel):
    city: str = Field(max_length=8)
    is_capital: bool


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    with (
        serving(tiny_app(tmp_path_factory.mktemp("model"))) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk,
    ):
        yield sdk


def test_streamed_and_whole_are_the_same(sdk):
    whole = sdk.responses.create(input="What is the capital of France?", **GREEDY)
    with sdk.responses.create(input="What is the capital of France?", stream=True, **GREEDY) as stream:
        *events, last = stream
    assert last.response.output_text == whole.output_text != ""
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    assert last.response.status == whole.status


def test_what_goes_on_is_as_if_all_had_been_sent_and_hits_the_prefix_cache(sdk):
    sent = [{"role": "user", "content": "Tell me a long story about a queue and a stack."}]
    first = sdk.responses.create(input=sent, **GREEDY)
    more = {"role": "user", "content": "And then?"}
    remembered = sdk.responses.create(input=[more], previous_response_id=first.id, **GREEDY)
    resent = sdk.responses.create(input=[*sent, *first.output, more], **GREEDY)
    assert remembered.output_text == resent.output_text
    assert remembered.usage.input_tokens == resent.usage.input_tokens
    assert remembered.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 2 * BLOCK_TOKENS


@pytest.mark.parametrize("temperature", [0, 1])
def test_parse_gives_what_the_schema_says(sdk, temperature):
    asked = {"model": "tiny", "input": "A place?", "temperature": temperature, "max_output_tokens": 120}
    parsed = sdk.responses.parse(text_format=Place, **asked).output_parsed
    assert parsed.is_capital in (True, False)
    jsonschema.validate(json.loads(parsed.model_dump_json()), Place.model_json_schema())


def test_log_probabilities(sdk):
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = sdk.responses.create(input="Count.", **GREEDY, **asked)
    [part] = response.output[0].content
    assert len(part.logprobs) == response.usage.output_tokens - (response.status == "completed")
    assert all(entry.logprob == max(top.logprob for top in entry.top_logprobs) for entry in part.logprobs)
