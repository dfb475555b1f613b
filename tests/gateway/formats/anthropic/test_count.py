"""POST /v1/messages/count_tokens: the length of the prompt as the message would have it."""

import pytest

from tests.support.anthropic_error_envelope import error_of
from tests.support.gateway import BODY
from tests.support.usage_events import events_of

PATH = "/v1/messages/count_tokens"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "be brief"},
        {"messages": [*BODY["messages"], {"role": "assistant", "content": "The"}]},
        {"thinking": {"type": "disabled"}},
    ],
)
def test_it_is_what_the_message_uses(client, fields):
    count = client.post(PATH, json=BODY | fields).json()
    usage = client.post("/v1/messages", json=BODY | fields | {"max_tokens": 1}).json()["usage"]
    assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_nothing_is_generated_or_billed(client, engine, journal):
    assert client.post(PATH, json=BODY).status_code == 200
    assert engine.calls == []
    assert events_of(journal) == []


def test_a_prompt_may_be_longer_than_the_window(client):
    body = BODY | {"messages": [{"role": "user", "content": "x" * 50_000}]}
    assert client.post(PATH, json=body).json()["input_tokens"] > 50_000


def test_a_model_that_there_is_not(client):
    assert "nope" in error_of(client.post(PATH, json=BODY | {"model": "nope"}), 404)


def test_sessions_are_not_counted(client):
    assert "x-turnpike-session" in error_of(client.post(PATH, json=BODY, headers={"x-turnpike-session": "s"}), 400)


def test_a_key_is_needed(client):
    error_of(client.post(PATH, json=BODY, headers={"authorization": "Bearer wrong"}), 401)
