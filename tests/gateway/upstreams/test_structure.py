"""Tool calls, reasoning and choices that another server has parsed, in every format."""

import json

from starlette.testclient import TestClient

from tests.support.fake_upstream import DONE, USAGE, Reply, chat_chunk, usage_chunk
from tests.support.gateway import AUTHORISED, CHAT
from tests.support.upstream_app import BIG
from tests.support.usage_events import event_of, events_of

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
REASONED = USAGE | {"completion_tokens_details": {"reasoning_tokens": 2}}


def call(index: int, arguments: str | None = None, **begun: str) -> dict:
    function = ({"name": begun.pop("name")} if "name" in begun else {}) | (
        {} if arguments is None else {"arguments": arguments}
    )
    return {"index": index, "type": "function", "function": function} | begun


CALLS = Reply([
    chat_chunk({"role": "assistant", "content": None, "reasoning_content": "hm"}),
    chat_chunk({"content": "Let me see."}),
    chat_chunk({"tool_calls": [call(0, "", id="c1", name="weather")]}),
    chat_chunk({"tool_calls": [call(0, '{"city":')]}),
    chat_chunk({"tool_calls": [call(0, '"Rome"}')]}),
    chat_chunk({"tool_calls": [call(1, "{}", id="c2", name="weather")]}),
    chat_chunk({}, "tool_calls"),
    usage_chunk(REASONED),
    DONE,
])  # fmt: skip


def test_calls_in_a_chat(client, upstream):
    upstream.reply = CALLS
    answer = client.post(CHAT, json=BIG | {"tools": [TOOL]}).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert choice["message"]["reasoning_content"] == "hm"
    assert [(each["id"], each["function"]["arguments"]) for each in choice["message"]["tool_calls"]] == [
        ("c1", '{"city":"Rome"}'),
        ("c2", "{}"),
    ]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


def test_calls_in_a_streamed_chat(client, upstream):
    upstream.reply = CALLS
    response = client.post(CHAT, json=BIG | {"tools": [TOOL], "stream": True})
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert "".join(part["function"].get("arguments", "") for part in parts if part["index"] == 0) == '{"city":"Rome"}'
    assert [part["id"] for part in parts if part.get("id")] == ["c1", "c2"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_in_an_anthropic_message(client, upstream, journal):
    upstream.reply = CALLS
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    body = {"model": "big", "max_tokens": 50, "messages": BIG["messages"], "tools": [tool]}
    answer = client.post("/v1/messages", json=body).json()
    assert answer["stop_reason"] == "tool_use"
    uses = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert [(use["id"], use["input"]) for use in uses] == [("c1", {"city": "Rome"}), ("c2", {})]
    assert (answer["usage"]["output_tokens"], event_of(journal).completion_tokens) == (3, 3)
    assert upstream.bodies[0]["tools"][0]["function"]["name"] == "weather"


def test_a_streamed_anthropic_message(client, upstream):
    body = {"model": "big", "max_tokens": 50, "messages": BIG["messages"], "stream": True}
    response = client.post("/v1/messages", json=body)
    lines = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    texts = [line["delta"]["text"] for line in lines if line.get("delta", {}).get("type") == "text_delta"]
    assert "".join(texts) == "Hello!"
    assert lines[-1]["type"] == "message_stop"


def test_a_response(client, upstream, journal):
    answer = client.post("/v1/responses", json={"model": "big", "input": "hi", "instructions": "be brief"}).json()
    (item,) = [each for each in answer["output"] if each["type"] == "message"]
    assert item["content"][0]["text"] == "Hello!"
    assert answer["usage"]["total_tokens"] == 10
    assert [message["role"] for message in upstream.bodies[0]["messages"]][-1] == "user"
    again = client.post(
        "/v1/responses", json={"model": "big", "input": "more", "previous_response_id": answer["id"]}
    ).json()
    assert again["status"] == "completed"
    assert [message["content"] for message in upstream.bodies[1]["messages"]][-2:] == ["Hello!", "more"]


def test_choices(client, upstream, journal):
    upstream.reply = Reply([
        chat_chunk("a", index=0),
        chat_chunk("b", index=1),
        chat_chunk("c", index=1),
        chat_chunk({}, "stop", index=0),
        chat_chunk({}, "length", index=1),
        usage_chunk({"prompt_tokens": 7, "completion_tokens": 9}),
        DONE,
    ])  # fmt: skip
    answer = client.post(CHAT, json=BIG | {"n": 2}).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "bc"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]
    assert upstream.bodies[0]["n"] == 2
    assert (event_of(journal).prompt_tokens, event_of(journal).completion_tokens) == (7, 9)


def test_a_session(client, upstream):
    for text in ("one", "two"):
        body = BIG | {"messages": [{"role": "user", "content": text}], "session_id": "s1"}
        assert client.post(CHAT, json=body).status_code == 200
    assert [message["content"] for message in upstream.bodies[1]["messages"]] == ["one", "Hello!", "two"]


def test_tokenize_needs_a_tokenizer(client):
    for path, body in (("tokenize", {"prompt": "hi"}), ("detokenize", {"tokens": [1]})):
        response = client.post(f"/v1/{path}", json={"model": "big"} | body)
        assert response.json()["error"]["param"] == "model", response.text
        assert response.status_code == 400


def test_anthropics_count_is_an_estimate(client):
    body = {"model": "big", "messages": [{"role": "user", "content": "x" * 40}]}
    assert 10 <= client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"] <= 20


def test_a_long_session_drops_its_oldest_turns(big, upstream):
    big.stated["max_model_len"] = 60
    with TestClient(big.build(), headers=AUTHORISED) as client:
        for number in range(6):
            body = BIG | {"messages": [{"role": "user", "content": f"{number} " + 30 * "x"}], "session_id": "s1"}
            response = client.post(CHAT, json=body | {"max_tokens": 5})
            assert response.status_code == 200, response.text
    sent = [message["content"] for message in upstream.bodies[-1]["messages"]]
    assert not any(content.startswith("0 ") for content in sent)
    assert sent[-1].startswith("5 ")
    assert int(response.headers["x-turnpike-session-dropped-turns"]) > 0


def test_an_upstream_sums_up_its_sessions(big, upstream, journal):
    big.stated["max_model_len"] = 600
    big.settings["session_window"] = "summary"
    with TestClient(big.build(), headers=AUTHORISED) as client:
        for number in range(4):
            body = BIG | {"messages": [{"role": "user", "content": f"{number} " + 700 * "x"}], "session_id": "s1"}
            response = client.post(CHAT, json=body | {"max_tokens": 5})
            assert response.status_code == 200, response.text
    summaries = [body for body in upstream.bodies if body.get("max_tokens") == 256]
    assert summaries
    assert summaries[0]["temperature"] == 0
    events = [each for each in events_of(journal) if each.request_id.startswith("sessionsum-")]
    assert len(events) == len(summaries)
    assert {each.served_model for each in events} == {"big"}
