"""Every parameter that OpenAI's and vLLM's clients know is honoured or refused by its name, never ignored in silence.

Honoured is what shows: in what the engine is asked, or in what the client is answered. The few that are to change
nothing are listed as such.
"""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from openai.types.chat import completion_create_params as chat_params
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming

from tests.support.error_envelope import error_of
from tests.support.gateway import CHAT, USER

COMPLETIONS = "/v1/completions"
BASE = {
    CHAT: {"model": "tiny", "messages": [USER], "max_tokens": 8},
    COMPLETIONS: {"model": "tiny", "prompt": "ab", "max_tokens": 8},
}

VLLM_BOTH = """
    use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs logprob_token_ids bad_words echo
    add_special_tokens response_format structured_outputs priority request_id return_tokens_as_token_ids
    return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval logits_processors
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern
"""
VLLM_CHAT = """
    top_logprobs reasoning_effort include_reasoning add_generation_prompt continue_final_message documents
    chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text best_of
"""
VLLM_COMPLETIONS = "prompt_embeds"

FIELD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FUNCTION = {"name": "f", "parameters": FIELD}
TOOLS = [{"type": "function", "function": FUNCTION}]
SAID = [USER, {"role": "assistant", "content": "Once"}]

ALONE = """
    add_generation_prompt=false add_special_tokens=false allowed_token_ids=[65] audio={"voice":"alloy","format":"wav"}
    bad_words=["x"] best_of=2 chat_template_kwargs={"a":1} documents=[{"title":"t","text":"x"}]
    ec_transfer_params={"a":1} echo=true frequency_penalty=1 guided_choice=["a"]
    guided_decoding_backend="xgrammar" guided_regex="a" ignore_eos=true include_reasoning=false
    include_stop_str_in_output=true kv_transfer_params={"a":1} length_penalty=0.5 logit_bias={"65":1}
    logits_processors=["x"] logprob_token_ids=[65] max_tokens=3 media_io_kwargs={"image":{"a":1}} min_p=0.5
    min_tokens=2 mm_processor_kwargs={"a":1} modalities=["text","audio"] model="org/tiny-2"
    moderation={"model":"omni"} n=2 prediction={"type":"content","content":"x"} presence_penalty=1 priority=1
    prompt="abc" prompt_cache_options={"ttl":"1h"} prompt_cache_retention="24h" prompt_embeds="AAAA" prompt_logprobs=1
    reasoning_effort="low" repetition_detection={"max_pattern_size":2} repetition_penalty=1.5 request_id="mine"
    response_format={"type":"json_object"} return_mm_kwargs=false return_prompt_text=true return_token_ids=true
    return_token_offsets=true return_tokens_as_token_ids=true routed_experts_prompt_start=1 seed=7 service_tier="flex"
    skip_special_tokens=false stop=["o"] stop_token_ids=[65] store=true stream=true stream_interval=4
    structured_outputs={"regex":"a"} suffix="x" temperature=0.5 thinking_token_budget=5 top_k=5 top_p=0.5
    truncate_prompt_tokens=2 use_beam_search=true verbosity="low" vllm_xargs={"a":1} watermarking=true
    web_search_options={"search_context_size":"low"}
"""
ASKING: dict[str, dict[str, Any]] = {
    **{name: {name: orjson.loads(value)} for name, value in (asked.split("=") for asked in ALONE.split())},
    "cache_salt": {"cache_salt": "x" * 43},
    "chat_template": {"chat_template": "{{ messages }}"},
    "continue_final_message": {"continue_final_message": True, "messages": SAID},
    "function_call": {"functions": [FUNCTION], "function_call": "none"},
    "functions": {"functions": [FUNCTION]},
    "guided_grammar": {"guided_grammar": 'root ::= "a"'},
    "guided_json": {"guided_json": FIELD},
    "guided_whitespace_pattern": {"guided_whitespace_pattern": " "},
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 3},
    "messages": {"messages": [USER | {"content": "yo"}]},
    "parallel_tool_calls": {"parallel_tool_calls": False, "tool_choice": "required", "tools": TOOLS},
    "spaces_between_special_tokens": {"spaces_between_special_tokens": True, "skip_special_tokens": False},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "tool_choice": {"tool_choice": "required", "tools": TOOLS},
    "tools": {"tools": TOOLS},
    "truncation_side": {"truncate_prompt_tokens": 2, "truncation_side": "right"},
}
"""For each parameter, members of a body that use it, with the other members that it needs."""

ASKING_CHAT = {
    "echo": {"echo": True, "messages": SAID, "continue_final_message": True},
    "add_special_tokens": {"add_special_tokens": True},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
}
ASKING_COMPLETIONS = {"logprobs": {"logprobs": 2}}

CHANGES_NOTHING = {"metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s", "user": "u"}
"""Hints: what a client says of itself."""


def known(path: str) -> list[str]:
    if path == CHAT:
        kinds = (chat_params.CompletionCreateParamsNonStreaming, chat_params.CompletionCreateParamsStreaming)
        others = VLLM_BOTH + VLLM_CHAT
    else:
        kinds = (CompletionCreateParamsNonStreaming, CompletionCreateParamsStreaming)
        others = VLLM_BOTH + VLLM_COMPLETIONS
    own = {name for kind in kinds for name in (*kind.__required_keys__, *kind.__optional_keys__)}
    return sorted(own.union(others.split()))


def seen(client, engine, path: str, body: dict[str, Any]) -> tuple[Any, ...]:
    """Observable effects of a request whose parameters are honoured."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        answer = ["usage" in response.text]
    else:
        answer = {name: value for name, value in response.json().items() if name not in ("id", "created")}
    return answer, [replace(call, request_id=None) for call in engine.calls[-1:]]


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in BASE for name in known(path)])
def test_it_is_honoured_or_refused_by_name(client, engine, path, name):
    body = BASE[path]
    if name in CHANGES_NOTHING:
        assert seen(client, engine, path, body | {name: CHANGES_NOTHING[name]}) == seen(client, engine, path, body)
        return
    asked = (ASKING_CHAT if path == CHAT else ASKING_COMPLETIONS).get(name) or ASKING[name]
    response = client.post(path, json=body | asked)
    if response.status_code == 400:
        error = error_of(response, 400)
        assert (error["code"], error["param"].split(".")[0]) == ("unsupported_parameter", name)
        return
    without = {other: value for other, value in asked.items() if other != name}
    assert seen(client, engine, path, body | asked) != seen(client, engine, path, body | without)


def test_nothing_is_listed_that_nobody_knows():
    names = {*known(CHAT), *known(COMPLETIONS)}
    assert names == {*ASKING, *ASKING_CHAT, *ASKING_COMPLETIONS, *CHANGES_NOTHING}
