"""Whatever the body: a message or an error in Anthropic's envelope, never 5xx, and nothing left running."""

import pytest
from hypothesis import given

from tests.support.anthropic_error_envelope import error_of
from tests.support.mutated_bodies import JSON_HEADERS, QUICK, as_sent, mutated
from tests.support.sse import events

HINT = {"cache_control": {"type": "ephemeral"}}
PROMPT = {
    "model": "tiny",
    "system": [{"type": "text", "text": "be brief", **HINT}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", **HINT}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t", "name": "add", "input": {"a": [1]}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "3", "is_error": False}]},
        {"role": "assistant", "content": "The sum"},
    ],
    "thinking": {"type": "adaptive", "display": "omitted"},
}
MESSAGE = PROMPT | {
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "stop_sequences": ["x"],
    "stream": True,
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "output_config": {"effort": "low"},
}
BODIES = [
    ("/v1/messages", MESSAGE),
    ("/v1/messages", MESSAGE | {"stream": False}),
    ("/v1/messages/count_tokens", PROMPT),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_the_bodies_that_are_mutated_are_valid(client, path, body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_mutated_bodies(client, engine, path, body):
    @QUICK
    @given(mutated(body))
    def run(mutant: dict) -> None:
        response = client.post(path, content=as_sent(mutant), headers=JSON_HEADERS)
        assert response.status_code in (200, 400, 404), response.text
        if response.status_code != 200:
            error_of(response, response.status_code)
        elif response.headers["content-type"].startswith("text/event-stream"):
            assert events(response.text)[-1] == {"type": "message_stop"}
        assert engine.live == set()

    run()
