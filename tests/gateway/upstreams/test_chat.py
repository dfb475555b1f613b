"""Chats of a model that another server runs: the answer, and the bill by what the server reports."""

import orjson
import pytest
from starlette.testclient import TestClient

from gateway.metering.event import Ending
from tests.support.error_envelope import error_of
from tests.support.fake_upstream import USAGE, Reply, chat_chunk, chat_reply, models_reply
from tests.support.gateway import AUTHORISED, CHAT, PREMIUM_KEY, until
from tests.support.upstream_app import BIG, KEY_THERE
from tests.support.usage_events import cost, event_of


def chunks_of(response) -> list[dict]:
    return [orjson.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def text_of(response) -> str:
    choices = [choice for chunk in chunks_of(response) for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_a_whole_answer(client, upstream, journal):
    response = client.post(CHAT, json=BIG)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["model"] == "big"
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello!", "stop")
    assert answer["usage"]["prompt_tokens"] == USAGE["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == USAGE["completion_tokens"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    event = event_of(journal)
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (7, 2, 3)
    assert event.cost_nanodollars == cost(event)
    assert (event.served_model, event.finish_reason) == ("big", Ending.STOP)
    assert event.model_version.startswith("upstream-")


def test_a_streamed_answer(client, upstream, journal):
    body = BIG | {"stream": True, "stream_options": {"include_usage": True}}
    response = client.post(CHAT, json=body)
    assert text_of(response) == "Hello!"
    assert response.text.endswith("data: [DONE]\n\n")
    assert chunks_of(response)[-1]["usage"]["total_tokens"] == 10
    event = event_of(journal)
    assert (event.prompt_tokens, event.completion_tokens, event.undelivered_tokens) == (7, 3, 0)
    assert event.ttft_ms is not None


def test_what_the_server_is_asked(client, upstream):
    client.post(CHAT, json=BIG)
    (received,) = upstream.received
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == f"Bearer {KEY_THERE}"
    assert received.body == {
        "model": "there",
        "messages": BIG["messages"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_the_finish_reason(client, upstream, journal, finish):
    upstream.reply = chat_reply("a", finish=finish)
    assert client.post(CHAT, json=BIG | {"max_tokens": 5}).json()["choices"][0]["finish_reason"] == finish
    assert event_of(journal).finish_reason == (Ending.STOP if finish == "stop" else Ending.LENGTH)
    assert upstream.bodies[0]["max_tokens"] == 5


def test_an_answer_that_is_no_stream(client, upstream, journal):
    message = {"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}
    whole = orjson.dumps({"object": "chat.completion", "choices": [message], "usage": USAGE})
    upstream.reply = Reply([whole], content_type="application/json")
    assert client.post(CHAT, json=BIG).json()["choices"][0]["message"]["content"] == "whole"
    assert event_of(journal).completion_tokens == 3


@pytest.mark.parametrize(
    "data", [b"data: {oops\n\n", b"data: 7\n\n", chat_chunk({"content": 7}), chat_chunk("x", index=9)]
)
def test_garbage_is_an_error_of_the_server(client, upstream, journal, data):
    upstream.reply = Reply([data])
    error = error_of(client.post(CHAT, json=BIG), 502)
    assert error["code"] == "upstream_invalid_response"
    assert event_of(journal).cost_nanodollars == 0


def test_the_list_of_models(client):
    cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    assert set(cards) == {"tiny", "org/tiny-2", "big"}
    assert cards["big"]["max_model_len"] in (4096, 32768)


@pytest.mark.parametrize(("owner", "running", "salted"), [
    ("vllm", True, True),
    ("turnpike", True, False),
    ("someone", False, False),
])  # fmt: skip
def test_what_vllm_is_asked_in_addition(big, upstream, owner, running, salted):
    """The usage in every chunk, and a prefix cache for each tenant."""
    upstream.models = models_reply("there", owner, 1000)
    with TestClient(big.build(), headers=AUTHORISED) as client:
        until(lambda: big.model.max_model_len == 1000)
        client.post(CHAT, json=BIG)
        client.post(CHAT, json=BIG)
        client.post(CHAT, json=BIG, headers={"authorization": f"Bearer {PREMIUM_KEY}"})
    assert [body["stream_options"].get("continuous_usage_stats", False) for body in upstream.bodies] == [running] * 3
    salts = [body.get("cache_salt") for body in upstream.bodies]
    assert (salts[0] is not None) == salted
    assert salts[0] == salts[1]
    assert (salts[0] != salts[2]) == salted
    assert "tenant" not in str(salts)


def test_the_request_id_reaches_the_servers_log(client, upstream):
    answer = client.post(CHAT, json=BIG).json()
    assert upstream.received[0].headers["x-request-id"].startswith(answer["id"])
