"""Bodies that are refused: the status, the field that is named, the code. Nothing reaches the engine."""

from dataclasses import replace

import orjson
import pytest

from gateway.generation.request import Conversation
from gateway.http.bounds import MAX_MESSAGES, MAX_PROMPTS
from tests.support.error_envelope import error_of
from tests.support.gateway import CHAT, USER

COMPLETIONS = "/v1/completions"
VALID = {CHAT: {"model": "tiny", "messages": [USER]}, COMPLETIONS: {"model": "tiny", "prompt": "ab"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def assistant(call) -> list:
    return [{"role": "assistant", "tool_calls": [call]}]


WRONG_TYPES = [
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": [1]}, "top_p"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"n": 1.5}, "n"),
    ({"seed": "x"}, "seed"),
    ({"stream": 1}, "stream"),
    ({"stream": "true"}, "stream"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop_token_ids": ["1"]}, "stop_token_ids[0]"),
    ({"logit_bias": []}, "logit_bias"),
    ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
    ({"stream": True, "stream_options": True}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"user": 5}, "user"),
    ({"model": 5}, "model"),
    ({"ignore_eos": "no"}, "ignore_eos"),
]
WRONG_VALUES = [
    ({"user": "x" * 513}, "user"),
    ({"safety_identifier": "x" * 65}, "safety_identifier"),
    ({"prompt_cache_key": "x" * 65}, "prompt_cache_key"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.01}, "top_p"),
    ({"min_p": -1}, "min_p"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": -(10**18)}, "n"),
    ({"top_k": -2}, "top_k"),
    ({"seed": 2**63}, "seed"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": "x" * 257}, "stop[0]"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"5000": 1}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
    ({"allowed_token_ids": [5000]}, "allowed_token_ids"),
    ({"allowed_token_ids": [5], "guided_regex": "a"}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": ["x" * 257]}, "bad_words[0]"),
    ({"bad_words": ["x"] * 257}, "bad_words"),
    ({"bad_words": ["x"], "guided_regex": "a"}, "bad_words"),
    ({"bad_words": ["x"], "min_tokens": 1}, "min_tokens"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"model": ""}, "model"),
]
UNSUPPORTED = [
    ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
    ({"guided_whitespace_pattern": " *"}, "guided_whitespace_pattern"),
    ({"priority": 1}, "priority"),
    ({"cache_salt": "x"}, "cache_salt"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"skip_special_tokens": False, "spaces_between_special_tokens": True}, "spaces_between_special_tokens"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
]
CHAT_UNSUPPORTED = [
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"store": True}, "store"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"messages": [USER | {"reasoning": "x"}]}, "messages[0].reasoning"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"best_of": 2}, "best_of"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
    ({"chat_template_kwargs": {"__class__": 1}}, "chat_template_kwargs.__class__"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]}, "messages[0].refusal"),
]
CHAT_INVALID = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [USER, {}]}, "messages[1].role"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [USER | {"name": 5}]}, "messages[0].name"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": assistant(5)}, "messages[0].tool_calls[0]"),
    ({"messages": assistant(CALL | {"id": None})}, "messages[0].tool_calls[0].id"),
    ({"messages": assistant(CALL | {"type": "x"})}, "messages[0].tool_calls[0].type"),
    ({"messages": assistant(CALL | {"function": None})}, "messages[0].tool_calls[0].function"),
    (
        {"messages": assistant(CALL | {"function": {"name": "f", "arguments": "[" * 10_000}})},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"messages": assistant(CALL | {"function": {"name": "f", "arguments": "5"}})},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
    ({"messages": [{"role": "user", "content": "TEMPLATE-REFUSES"}]}, "messages"),
    ({"continue_final_message": True}, "messages"),
    ({"continue_final_message": True, "messages": assistant(CALL)}, "messages"),
    (
        {
            "continue_final_message": True,
            "add_generation_prompt": True,
            "messages": [{"role": "assistant", "content": "x"}],
        },
        "add_generation_prompt",
    ),
    ({"reasoning_effort": "much"}, "reasoning_effort"),
    (
        {"messages": [{"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}]},
        "messages[0].reasoning_content",
    ),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs.a"),
    ({"chat_template_kwargs": {f"a{i}": 1 for i in range(17)}}, "chat_template_kwargs"),
]
COMPLETION_INVALID = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": True}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [1, True]}, "prompt[1]"),
    ({"prompt": [1, -1]}, "prompt[1]"),
    ({"prompt": [2**40]}, "prompt[0]"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [[1], "a"]}, "prompt[1]"),
    ({"prompt": [[[1]]]}, "prompt[0][0]"),
    ({"prompt": [{}]}, "prompt[0]"),
    ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 2}, "n"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"suffix": "x"}, "suffix"),
    ({"suffix": 5}, "suffix"),
    ({"suffix": "x", "echo": True}, "echo"),
    ({"suffix": "x", "prompt": [1]}, "suffix"),
    ({"suffix": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"prompt": ["a"] * 100, "best_of": 2}, "best_of"),
    ({"echo": 1}, "echo"),
    ({"tools": []}, "tools"),
]


def both(cases) -> list:
    return [(path, fields, param) for path in (CHAT, COMPLETIONS) for fields, param in cases]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        *both(WRONG_TYPES),
        *both(WRONG_VALUES),
        *[(CHAT, *case) for case in CHAT_INVALID],
        *[(COMPLETIONS, *case) for case in COMPLETION_INVALID],
    ],
)
def test_names_the_field_at_fault(client, engine, path, fields, param):
    error = error_of(client.post(path, json=VALID[path] | fields), 400)
    assert error["param"] == param
    assert engine.calls == []


@pytest.mark.parametrize(
    ("path", "fields", "param"), [*both(UNSUPPORTED), *[(CHAT, *case) for case in CHAT_UNSUPPORTED]]
)
def test_what_cannot_be_honoured_is_refused_by_name(client, engine, path, fields, param):
    error = error_of(client.post(path, json=VALID[path] | fields), 400)
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert engine.calls == []


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_parameter_is_refused_by_name(client, path):
    error = error_of(client.post(path, json=VALID[path] | {"temprature": 0}), 400)
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")
    error = error_of(client.post(path, json=VALID[path] | {"x" * 10_000: 0}), 400)
    assert len(error["param"]) == 64
    error = error_of(client.post(CHAT, json=VALID[CHAT] | {"messages": [USER | {"weight": 1}]}), 400)
    assert (error["param"], error["code"]) == ("messages[0].weight", "unknown_parameter")


@pytest.mark.parametrize(("path", "missing"), [(CHAT, "messages"), (COMPLETIONS, "prompt"), (CHAT, "model")])
def test_a_required_parameter_is_missing(client, path, missing):
    body = {name: value for name, value in VALID[path].items() if name != missing}
    error = error_of(client.post(path, json=body), 400)
    assert (error["param"], error["code"]) == (missing, "missing_required_parameter")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model":"tiny"',
        b"nonsense",
        b'{"model":"tiny"}x',
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b'{"temperature":NaN}',
        b'{"temperature":Infinity}',
        b'{"temperature":-Infinity}',
        b'{"temperature":1e999}',
        b'{"seed":1' + b"0" * 400 + b"}",
        b'{"model":"\\ud800"}',
        b'{"model":"\xff\xfe"}',
        b'{"model":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 30_000,
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"]" * 200,
        b"\x00",
    ],
    ids=range(24),
)
def test_what_is_not_one_json_object(client, engine, body):
    response = client.post(CHAT, content=body, headers={"content-type": "application/json"})
    error_of(response, 400)
    assert engine.calls == []


@pytest.mark.parametrize(
    ("values", "what"),
    [(b"[]," * 20_000, "arrays and objects"), (b'"",' * 40_000, "strings"), (b'\\"\\\\",' * 40_000, "strings")],
)
def test_json_that_is_costly_to_build_is_not_built(client, values, what):
    response = client.post(CHAT, content=b"[%b0]" % values, headers={"content-type": "application/json"})
    assert what in error_of(response, 400)["message"]


def test_json_in_strings_is_bounded_together(client, engine):
    """Sixty calls with as many arrays as a body may have would block the event loop, and all streams, for a second."""
    arguments = '{"a":[' + "[]," * 9_000 + "0]}"
    calls = [CALL | {"function": {"name": "f", "arguments": arguments}}] * 2
    error = error_of(
        client.post(CHAT, json=VALID[CHAT] | {"messages": [{"role": "assistant", "tool_calls": calls}]}), 400
    )
    assert error["param"] == "messages[0].tool_calls[1].function.arguments"
    assert engine.calls == []


def test_a_conversation_is_as_long_as_all_that_its_template_may_write():
    call = CALL | {"function": {"name": "f", "arguments": {"text": "x" * 1000}}}
    conversation = Conversation(messages=({"role": "assistant", "content": "y" * 1000, "tool_calls": [call]},))
    assert conversation.chars > 2000
    assert replace(conversation, variables={"a": "z" * 1000}).chars > 3000


@pytest.mark.parametrize("text", ['[{"' * 3000, '\\"' * 3000, "\\" * 3001, "]" * 3000, "é\n\0" * 3000])
def test_brackets_and_quotes_in_text_are_text(client, text):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": text}], "add_generation_prompt": False}
    assert client.post("/v1/tokenize", json=asked).json()["count"] == 1 + len(f"<user>{text}\n".encode())


@pytest.mark.parametrize(("depth", "code"), [(64, "unknown_parameter"), (65, "invalid_json")])
def test_the_deepest_json_that_is_read(client, depth, code):
    nested = b"[" * (depth - 1) + b"]" * (depth - 1)
    body = b'{"model":"tiny","prompt":"a","extra":%b}' % nested
    error = error_of(client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"}), 400)
    assert error["code"] == code


def test_of_duplicate_keys_the_last_counts(client):
    body = b'{"temperature":"x","model":"tiny","messages":[{"role":"user","content":"hi"}],"temperature":1}'
    assert client.post(CHAT, content=body, headers={"content-type": "application/json"}).status_code == 200


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=UTF-8", "application/json;"])
def test_json_in_utf8_is_taken(client, content_type):
    body = orjson.dumps(VALID[CHAT])
    assert client.post(CHAT, content=body, headers={"content-type": content_type}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": ""},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/jsonp"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "application/json", "content-encoding": "br, identity"},
    ],
)
def test_other_media_types_and_encodings(client, headers):
    error_of(client.post(CHAT, content=orjson.dumps(VALID[CHAT]), headers=headers), 415)


def test_an_unknown_model(client):
    error = error_of(client.post(CHAT, json=VALID[CHAT] | {"model": "nope"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
        (COMPLETIONS, {"prompt": "x" * 600}, "prompt"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_over_the_window_never_reaches_the_engine(client, engine, path, fields, param, stream):
    error = error_of(client.post(path, json=VALID[path] | fields | {"stream": stream}), 400)
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert engine.calls == []
