"""Whatever the bytes: an answer or an envelope, never 5xx, and nothing left running.

Here with a fake engine, by hypothesis, and for a few seconds with the real one; `python -m tests.fuzz` goes on as long
as one likes.
"""

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.fuzz.campaign import Campaign
from tests.fuzz.serving import serving
from tests.support.error_envelope import error_of
from tests.support.gateway import CHAT
from tests.support.mutated_bodies import JSON_HEADERS, QUICK, as_sent, mutated, values

COMPLETIONS = "/v1/completions"


FULL_CHAT = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "hi", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ],
    "max_completion_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "stop": ["x"],
    "seed": 1,
    "logit_bias": {"65": 1},
    "logprobs": True,
    "top_logprobs": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "metadata": {"a": "b"},
    "chat_template_kwargs": {"a": True},
    "stop_token_ids": [1],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "strict": True, "schema": {"type": "object", "properties": {"a": {"enum": [1]}}}},
    },
    "tools": [],
    "truncate_prompt_tokens": 200,
    "truncation_side": "left",
    "return_token_ids": True,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
    "reasoning_effort": None,
    "echo": True,
}
FULL_TURN = FULL_CHAT | {"n": 1, "session_id": "s", "max_completion_tokens": 40}
FULL_COMPLETION = {
    "model": "tiny",
    "prompt": [[1, 2], [3]],
    "max_tokens": 3,
    "echo": True,
    "logprobs": 2,
    "n": 2,
    "best_of": 2,
    "suffix": None,
    "stop": "x",
    "logit_bias": {"1": -100},
    "structured_outputs": {"choice": ["a", "b"]},
}
FULL_SCORING = {
    "model": "tiny",
    "prompt": ["ab", "c"],
    "max_tokens": 3,
    "best_of": 3,
    "n": 2,
    "logprobs": 1,
    "prompt_logprobs": 2,
    "allowed_token_ids": [65, 66],
    "truncate_prompt_tokens": -1,
    "suffix": "",
    "bad_words": [],
    "add_special_tokens": False,
    "return_token_ids": True,
    "spaces_between_special_tokens": False,
}
FULL_EMBEDDINGS = {
    "model": "tiny",
    "input": [[1, 2], [3]],
    "encoding_format": "base64",
    "user": "ann",
    "service_tier": "auto",
}
FULL_TOKENIZE = {"model": "tiny", "prompt": "ab", "add_special_tokens": False, "return_token_strs": True}
FULL_DETOKENIZE = {"model": "tiny", "tokens": [65, 66]}
BODIES = [
    (CHAT, FULL_CHAT),
    (CHAT, FULL_TURN),
    (COMPLETIONS, FULL_COMPLETION),
    (COMPLETIONS, FULL_SCORING),
    ("/v1/embeddings", FULL_EMBEDDINGS),
    ("/v1/tokenize", FULL_TOKENIZE),
    ("/v1/detokenize", FULL_DETOKENIZE),
]


def check(client: TestClient, engine, path: str, content: bytes) -> None:
    response = client.post(path, content=content, headers=JSON_HEADERS)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = error_of(response)
        assert error["param"] is None or isinstance(error["param"], str)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in response.text
    assert engine.live == set()


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_the_bodies_that_are_mutated_are_valid(client, path, body):
    assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_mutated_bodies(client, engine, path, body):
    @QUICK
    @given(mutated(body))
    def run(mutant: dict) -> None:
        check(client, engine, path, as_sent(mutant))

    run()
    assert client.post(path, json=body).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_any_json(client, engine, path):
    @QUICK
    @given(values)
    def run(body: object) -> None:
        check(client, engine, path, as_sent(body))

    run()


def test_damaged_bytes(client, engine):
    whole = orjson.dumps(FULL_CHAT)

    @QUICK
    @given(st.integers(0, len(whole)), st.integers(0, 4), st.binary(max_size=6))
    def run(start: int, length: int, piece: bytes) -> None:
        check(client, engine, CHAT, whole[:start] + piece + whole[start + length :])

    run()
    assert client.post(CHAT, json=FULL_CHAT).status_code == 200


def test_hostile_requests_beside_streams_of_the_real_engine(tmp_path):
    """No 5xx, every envelope right, the text of no neighbour changed, no block, slot, hold or file left over."""
    with serving(tmp_path) as served:
        campaign = Campaign(served, seed=20)

        async def run() -> None:
            await campaign.begin()
            for number in range(10):
                await campaign.round(number)
            campaign.end()

        asyncio.run(run())
    assert campaign.findings == []
    assert {200, 400, 404, None} <= campaign.statuses.keys()
