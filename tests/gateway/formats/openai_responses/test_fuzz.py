"""Whatever is asked: a response or an envelope, never 5xx, and nothing left running."""

import pytest
from hypothesis import given

from tests.support import sse
from tests.support.error_envelope import error_of
from tests.support.mutated_bodies import JSON_HEADERS, QUICK, as_sent, mutated, values
from tests.support.responses_bodies import PATH

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}', "status": "completed"}
FULL = {
    "model": "tiny",
    "instructions": "be brief",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}]},
        CALL,
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "3"}]},
    ],
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 5,
    "max_tool_calls": 2,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "reasoning": {"summary": "auto"},
    "service_tier": "auto",
    "store": True,
    "stream": False,
    "temperature": 0.5,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {"a": {}}}}},
    "top_p": 0.9,
    "truncation": "disabled",
    "user": "ann",
}
STREAMED = FULL | {
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "text": {"verbosity": "medium"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
}
WITH_TOOLS = FULL | {
    "text": {},
    "tools": [
        {"type": "function", "name": "f", "description": "d", "strict": True, "parameters": {"type": "object"}},
        {"type": "function", "name": "g"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
}


def check(client, engine, content: bytes) -> None:
    response = client.post(PATH, content=content, headers=JSON_HEADERS)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = error_of(response)
        assert error["param"] is None or isinstance(error["param"], str)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert sse.events(response.text)[-1]["type"] in ("response.completed", "response.incomplete")
    assert engine.live == set()


@pytest.mark.parametrize("full", [FULL, STREAMED, WITH_TOOLS])
def test_mutated_bodies(client, engine, full):
    @QUICK
    @given(mutated(full))
    def run(mutant: dict) -> None:
        check(client, engine, as_sent(mutant))

    assert client.post(PATH, json=full).status_code == 200
    run()
    assert client.post(PATH, json=full).status_code == 200


def test_any_json(client, engine):
    @QUICK
    @given(values)
    def run(body: object) -> None:
        check(client, engine, as_sent(body))

    run()
