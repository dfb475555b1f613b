"""POST /v1/chat/completions: what a client sends, what the engine is asked, what comes back."""

import base64

import pytest

from engine.request import STANDARD
from tests.support.error_envelope import error_of
from tests.support.fake_model import BOS
from tests.support.gateway import PREMIUM_KEY, USER
from tests.support.sse import chunks

URL = "/v1/chat/completions"


def chat(client, **fields):
    return client.post(URL, json={"model": "tiny", "messages": [USER]} | fields)


def test_whole_answer(client):
    response = chat(client)
    body = response.json()
    assert response.status_code == 200
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    assert body["system_fingerprint"].startswith("fp_")
    assert isinstance(body["created"], int)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt_tokens = 1 + len("<user>hi\n<assistant>")
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 13,
        "total_tokens": prompt_tokens + 13,
        "prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 4,
            "rejected_prediction_tokens": 4,
        },
    }


def test_stream_has_role_content_finish_usage_done_in_this_order(client):
    seen = chunks(chat(client, stream=True, stream_options={"include_usage": True}))
    first, *contents, finish, usage = seen
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert "".join(c["choices"][0]["delta"]["content"] for c in contents) == "Hello, world!"
    assert finish["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 13)
    assert all(chunk["usage"] is None for chunk in seen[:-1])
    assert {(c["id"], c["object"], c["model"], c["created"]) for c in seen} == {
        (first["id"], "chat.completion.chunk", "tiny", first["created"])
    }


def test_stream_without_usage_does_not_mention_it(client):
    assert not any("usage" in chunk for chunk in chunks(chat(client, stream=True)))


def test_each_choice_of_a_stream_begins_and_ends_once(client):
    seen = chunks(chat(client, stream=True, n=3, max_tokens=4, stream_options={"include_usage": True}))
    *deltas, usage = seen
    for index in range(3):
        mine = [c["choices"][0] for c in deltas if c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == "length"
        assert "".join(c["delta"].get("content", "") for c in mine) == "Hell"
    assert usage["usage"]["completion_tokens"] == 12


def test_usage_counts_the_prompt_once_and_all_choices(client):
    usage = chat(client, n=3, max_tokens=4).json()["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["prompt_tokens"] == 1 + len("<user>hi\n<assistant>")
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1


def test_characters_of_several_tokens_arrive_whole(client, engine):
    engine.reply = "naïve 🙂 日本"
    contents = [c["choices"][0]["delta"].get("content", "") for c in chunks(chat(client, stream=True))]
    assert "".join(contents) == engine.reply
    assert "�" not in "".join(contents)


def test_logprobs_name_tokens_their_bytes_and_alternatives(client, engine):
    engine.reply = "a" + "é"
    body = chat(client, logprobs=True, top_logprobs=2).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert entries[0] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "b", "logprob": -1.5, "bytes": [98]},
        ],
    }
    assert [entry["token"] for entry in entries[1:]] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == engine.reply


def test_streamed_logprobs_are_the_whole_answers(client, engine):
    engine.reply = "aé"
    whole = chat(client, logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
    seen = chunks(chat(client, logprobs=True, top_logprobs=1, stream=True))
    streamed = [e for c in seen for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole


def test_an_impossible_token_has_a_finite_logprob(client):
    entry = chat(client, logprobs=True).json()["choices"][0]["logprobs"]["content"][0]
    assert (entry["logprob"], entry["top_logprobs"]) == (-9999.0, [])


def test_every_parameter_reaches_the_engine(client, engine):
    response = chat(
        client,
        max_completion_tokens=7,
        min_tokens=2,
        temperature=0,
        top_p=0.5,
        top_k=5,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=-0.3,
        repetition_penalty=1.1,
        logit_bias={"65": 5, "66": -100},
        seed=-4,
        stop=["zz", "END"],
        stop_token_ids=[3],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
        n=2,
    )
    assert response.status_code == 200, response.text
    params = engine.calls[0].params
    assert (params.max_tokens, params.min_tokens, params.n, params.seed) == (7, 2, 2, -4)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 0.5, 5, 0.1)
    assert (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (0.2, -0.3, 1.1)
    assert dict(params.logit_bias) == {65: 5.0, 66: -100.0}
    assert (params.stop, params.stop_token_ids, params.ignore_eos) == (("zz", "END"), (3,), True)
    assert (params.logprobs, params.prompt_logprobs) == (3, None)


@pytest.mark.parametrize("off", [-1, 0, None])
def test_top_k_off(client, engine, off):
    assert chat(client, top_k=off).status_code == 200
    assert engine.calls[0].params.top_k == 0


def test_nulls_are_defaults(client, engine):
    nulls = ("max_tokens", "temperature", "stop", "n", "seed", "logit_bias", "tools", "stream_options", "logprobs")
    assert chat(client, **dict.fromkeys(nulls)).status_code == 200
    [call] = engine.calls
    assert call.params.max_tokens == engine.models[call.model].max_model_len - len(call.prompt)


def test_what_changes_nothing_is_taken(client):
    response = chat(
        client,
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        prompt_cache_key="k",
        safety_identifier="s",
        response_format={"type": "text"},
        modalities=["text"],
        tools=[],
        tool_choice="none",
    )
    assert response.status_code == 200, response.text


def test_roles_and_content_parts(client, engine):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "hi", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":[1]}'}}],
            "refusal": None,
            "audio": None,
            "annotations": [],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    response = chat(client, messages=messages)
    assert response.status_code == 200, response.text
    rendered = bytes(engine.calls[0].prompt[1:]).decode()
    assert rendered == "<system>be brief\n<developer>a\nb\n<user>hi\n<assistant>\n<tool>3\n<assistant>"


def test_template_variables(client, engine):
    variables = {"enable_thinking": False, "effort": "low"}
    assert chat(client, chat_template_kwargs=variables, add_generation_prompt=False).status_code == 200
    assert bytes(engine.calls[0].prompt[1:]).decode() == "<user>hi\n[enable_thinking=False][effort=low]"


def test_reasoning_effort_goes_to_a_template_that_reads_it(client, engine):
    reads = engine.models["tiny"].text.variables
    error = error_of(chat(client, reasoning_effort="none"), 400)
    assert (error["param"], error["code"]) == ("reasoning_effort", "unsupported_parameter")
    reads.add("enable_thinking")
    assert chat(client, reasoning_effort="none").status_code == 200
    assert bytes(engine.calls[-1].prompt[1:]).decode().endswith("[enable_thinking=False]<assistant>")
    assert error_of(chat(client, reasoning_effort="low"), 400)["param"] == "reasoning_effort"
    reads.add("reasoning_effort")
    assert chat(client, reasoning_effort="low").status_code == 200
    assert bytes(engine.calls[-1].prompt[1:]).decode().endswith("[reasoning_effort=low]<assistant>")


def test_answers_can_be_sent_back_as_they_are(client, engine):
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    for said in ({"reasoning_content": "hm"}, {"reasoning": "hm"}, {"refusal": "", "parsed": None}, {"reasoning": ""}):
        messages = [USER, {"role": "assistant", "content": "yes"} | empty | said, USER]
        assert chat(client, messages=messages).status_code == 200
        assert bytes(engine.calls[-1].prompt[1:]).decode() == "<user>hi\n<assistant>yes\n<user>hi\n<assistant>"
    answer = chat(client).json()["choices"][0]["message"]
    assert chat(client, messages=[USER, answer, USER]).status_code == 200


def test_an_answer_that_goes_on_with_the_last_message(client, engine):
    messages = [USER, {"role": "assistant", "content": "Once upon"}]
    for fields in ({}, {"add_generation_prompt": False}):
        body = chat(client, messages=messages, continue_final_message=True, **fields).json()
        assert body["choices"][0]["message"]["content"] == "Hello, world!"
        assert bytes(engine.calls[-1].prompt[1:]).decode() == "<user>hi\n<assistant>Once upon"
        assert engine.calls[-1].continues_text
    chat(client, messages=messages)
    assert not engine.calls[-1].continues_text


def test_an_echo_is_what_the_assistant_has_begun_to_say(client):
    parts = [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]
    for said, shown in (("Once upon ", "Once upon "), (parts, "Once\nupon")):
        asked = {
            "messages": [USER, {"role": "assistant", "content": said}],
            "continue_final_message": True,
            "echo": True,
        }
        body = chat(client, n=2, **asked).json()
        assert [c["message"]["content"] for c in body["choices"]] == [shown + "Hello, world!"] * 2
        assert body["usage"]["completion_tokens"] == 2 * 13
        streamed = [c["choices"][0] for c in chunks(chat(client, stream=True, **asked))]
        assert "".join(c["delta"].get("content", "") for c in streamed) == shown + "Hello, world!"
    assert chat(client, echo=True).json()["choices"][0]["message"]["content"] == "Hello, world!"


def test_tenant_and_tier_come_from_the_key(client, engine):
    chat(client)
    client.post(URL, json={"model": "tiny", "messages": [USER]}, headers={"authorization": f"Bearer {PREMIUM_KEY}"})
    standard, premium = engine.calls
    assert (standard.tenant, standard.service_class) == ("tenant-1", STANDARD)
    assert (premium.tenant, premium.service_class.name, premium.service_class.priority) == ("tenant-2", "premium", 0)
    assert standard.request_id != premium.request_id


def test_a_long_conversation_is_tokenised_on_a_thread(client, engine):
    long = base64.b64encode(bytes(20_000)).decode()
    response = chat(client, messages=[{"role": "user", "content": long}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert engine.calls == []


def test_the_answer_may_fill_the_window_and_no_more(client, engine):
    prompt_tokens = 1 + len("<user>hi\n<assistant>")
    engine.reply = "x" * 1000
    room = 512 - prompt_tokens
    assert chat(client, max_tokens=room).json()["usage"]["total_tokens"] == 512
    assert chat(client).json()["usage"]["total_tokens"] == 512
    error = chat(client, max_completion_tokens=room + 1).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_completion_tokens")


def test_engine_is_given_the_prompt_as_rendered(client, engine):
    chat(client)
    assert engine.calls[0].prompt == (BOS, *b"<user>hi\n<assistant>")
