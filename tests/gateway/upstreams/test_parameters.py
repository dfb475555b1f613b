"""Parameters of a request on their way to another server, and those that are refused because they cannot be passed."""

import json

import pytest
from starlette.testclient import TestClient

from tests.support.error_envelope import error_of
from tests.support.fake_upstream import DONE, Reply, chat_reply, event
from tests.support.gateway import AUTHORISED, CHAT
from tests.support.upstream_app import BIG
from tests.support.usage_events import event_of

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
COMPLETION = {"model": "big", "prompt": "Once"}


def completion_reply(text: str, **choice: object) -> Reply:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    stated = {"index": 0, "text": text, "finish_reason": "stop"} | choice
    return Reply([event({"choices": [stated]}), event({"choices": [], "usage": usage}), DONE])


@pytest.mark.parametrize(("stated", "sent"), [
    ({"temperature": 1.0}, {"temperature": 1.0}),
    ({"temperature": 0, "top_p": 0.5, "seed": 7}, {"temperature": 0.0, "top_p": 0.5, "seed": 7}),
    ({"top_k": -1}, {"top_k": -1}),
    ({"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}, {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}),
    ({"frequency_penalty": 0.5, "presence_penalty": -0.5}, {"frequency_penalty": 0.5, "presence_penalty": -0.5}),
    ({"stop": "END"}, {"stop": ["END"]}),
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
    ({"logit_bias": {"5": 1}}, {"logit_bias": {"5": 1.0}}),
    ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    ({"min_tokens": 2, "ignore_eos": True}, {"min_tokens": 2, "ignore_eos": True}),
    ({"stop_token_ids": [3]}, {"stop_token_ids": [3]}),
    ({"allowed_token_ids": [3, 1]}, {"allowed_token_ids": [1, 3]}),
    ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    ({"include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
    ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
    ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}}),
    ({"response_format": {"type": "json_object"}}, {"response_format": {"type": "json_object"}}),
    ({"guided_regex": "[ab]+"}, {"structured_outputs": {"regex": "[ab]+"}}),
    ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
    ({"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "auto"}),
    ({"tools": [TOOL], "tool_choice": "required"}, {"tools": [TOOL], "tool_choice": "required"}),
    ({"tools": [TOOL], "tool_choice": "none"}, {}),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    ),
    (
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
    ),
])  # fmt: skip
def test_what_is_passed(client, upstream, stated, sent):
    assert client.post(CHAT, json=BIG | stated).status_code == 200
    plain = {"model": "there", "messages": BIG["messages"], "stream": True, "stream_options": {"include_usage": True}}
    assert upstream.bodies == [plain | sent]


def test_a_schema(client, upstream):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    stated = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert client.post(CHAT, json=BIG | {"response_format": stated}).status_code == 200
    sent = upstream.bodies[0]["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"]["properties"] == schema["properties"]


def test_earlier_calls_travel_as_they_came(client, upstream):
    arguments = json.dumps({"city": "Rome"}, separators=(",", ":"))
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "system", "content": "brief"},
        {"role": "user", "content": [{"type": "text", "text": "how is it?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    ]
    assert client.post(CHAT, json=BIG | {"messages": messages, "tools": [TOOL]}).status_code == 200
    assert upstream.bodies[0]["messages"] == messages


@pytest.mark.parametrize(("field", "value"), [
    ("return_token_ids", True),
    ("prompt_logprobs", 1),
    ("truncate_prompt_tokens", 5),
    ("bad_words", ["x"]),
])  # fmt: skip
def test_what_cannot_be_passed_is_refused_by_its_name(client, upstream, field, value):
    error = error_of(client.post(CHAT, json=BIG | {field: value}), 400)
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert not upstream.received


@pytest.mark.parametrize(("field", "stated"), [
    ("suffix", {"suffix": "end"}),
    ("echo", {"echo": True, "logprobs": 1}),
    ("echo", {"echo": True, "prompt": [1, 2]}),
])  # fmt: skip
def test_parts_of_completions_that_cannot_be_passed(client, upstream, field, stated):
    assert error_of(client.post("/v1/completions", json=COMPLETION | stated), 400)["param"] == field
    assert not upstream.received


def test_a_completion(client, upstream):
    upstream.reply = completion_reply(" upon")
    answer = client.post("/v1/completions", json=COMPLETION | {"echo": True, "temperature": 0.5}).json()
    assert answer["choices"][0]["text"] == "Once upon"
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (1, 2)
    (received,) = upstream.received
    assert received.path == "/v1/completions"
    assert received.body["prompt"] == "Once"
    assert (received.body["max_tokens"], received.body["temperature"]) == (16, 0.5)


def test_prompts_are_sent_one_by_one_and_numbered(client, upstream):
    upstream.reply = lambda received: completion_reply(f"<{received.body['prompt']}>")
    prompts = ["a", "b", "c"]
    answer = client.post("/v1/completions", json=COMPLETION | {"prompt": prompts}).json()
    assert [choice["text"] for choice in answer["choices"]] == ["<a>", "<b>", "<c>"]
    assert answer["usage"]["completion_tokens"] == 6


def test_token_ids_are_passed_as_they_are(client, upstream):
    upstream.reply = completion_reply("x")
    assert client.post("/v1/completions", json=COMPLETION | {"prompt": [5, 6]}).status_code == 200
    assert upstream.bodies[0]["prompt"] == [5, 6]


def test_logprobs_of_a_completion(client, upstream):
    logprobs = {"tokens": ["He", "y"], "token_logprobs": [-0.5, -1.0], "top_logprobs": [{"He": -0.5}, {"y": -1.0}]}
    upstream.reply = completion_reply("Hey", logprobs=logprobs)
    answer = client.post("/v1/completions", json=COMPLETION | {"logprobs": 1}).json()
    assert answer["choices"][0]["logprobs"] == logprobs | {"text_offset": [0, 2]}


def test_logprobs_of_a_chat(client, upstream):
    entry = {"token": "é", "bytes": [0xC3, 0xA9], "logprob": -0.25}
    stated = {"content": [entry | {"top_logprobs": [entry]}]}
    chunk = {"index": 0, "delta": {"content": "é"}, "logprobs": stated, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    upstream.reply = Reply([event({"choices": [chunk]}), event({"choices": [], "usage": usage}), DONE])
    answer = client.post(CHAT, json=BIG | {"logprobs": True, "top_logprobs": 1}).json()
    assert answer["choices"][0]["logprobs"]["content"] == [entry | {"top_logprobs": [entry]}]


def test_defaults_of_the_settings_are_sent(big, upstream):
    big.settings["sampling_defaults"] = {"big": {"temperature": 0.25}}
    upstream.reply = chat_reply("x")
    with TestClient(big.build(), headers=AUTHORISED) as client:
        client.post(CHAT, json=BIG)
        client.post(CHAT, json=BIG | {"temperature": 1})
    assert [body["temperature"] for body in upstream.bodies] == [0.25, 1.0]


def test_embeddings(big, upstream, journal):
    big.settings["embeddings"] = {"big": "mean"}

    def reply(received):
        vector = [float(len(received.body["input"])), 0.5]
        body = {"data": [{"index": 0, "embedding": vector}], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
        return Reply([json.dumps(body).encode()], content_type="application/json")

    upstream.reply = reply
    with TestClient(big.build(), headers=AUTHORISED) as client:
        answer = client.post("/v1/embeddings", json={"model": "big", "input": ["a", "bb"]}).json()
    assert [item["embedding"] for item in answer["data"]] == [[1.0, 0.5], [2.0, 0.5]]
    assert answer["usage"]["prompt_tokens"] == 6
    assert (event_of(journal).prompt_tokens, event_of(journal).completion_tokens) == (6, 0)
    assert [each.path for each in upstream.received] == ["/v1/embeddings"] * 2
