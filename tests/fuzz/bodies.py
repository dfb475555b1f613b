"""Valid requests, with as many parameters as go together: what mutations start from. A new route adds its own here."""

from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, "x"]}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
HINT = {"cache_control": {"type": "ephemeral"}}
HI = [{"role": "user", "content": "hi"}]
CONTINUED = [*HI, {"role": "assistant", "content": "He"}]

SAMPLED = {"temperature": 0.5, "top_p": 0.9, "stream": True, "metadata": {"a": "b"}}
MORE_SAMPLED = {"top_k": 50, "min_p": 0.01, "n": 2, "seed": 1, "logit_bias": {"65": 1, "66": -100}}
PENALISED = {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.1}
STOPPED = {"min_tokens": 2, "ignore_eos": False, "stop": ["x", "lazy"], "stop_token_ids": [300]}
TOLD = {"logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}, "user": "ann"}
TRUNCATED = {"truncate_prompt_tokens": 200, "truncation_side": "left", "echo": True, "return_token_ids": True}
DETOKENIZED = {"skip_special_tokens": False, "include_stop_str_in_output": True, "reasoning_effort": None}

CONVERSATION = [
    {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
    {"role": "user", "content": "hi", "name": "ann"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "c"},
    {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
]
TEMPLATED = {"messages": CONVERSATION, "max_completion_tokens": 6, "chat_template_kwargs": {"a": True}}
FULL_CHAT = TEMPLATED | SAMPLED | MORE_SAMPLED | PENALISED | STOPPED | TOLD
FORMATTED_CHAT = FULL_CHAT | TRUNCATED | DETOKENIZED | {"response_format": FORMAT, "tools": [], "min_tokens": 0}

COMPLETED = {"prompt": [[5, 6, 7], [8]], "max_tokens": 3, "n": 2, "best_of": 2, "echo": True, "logprobs": 2}
FULL_COMPLETION = COMPLETED | {"suffix": None, "stop": "x", "logit_bias": {"1": -100}}
SCORED = {"prompt": ["ab", "c"], "max_tokens": 3, "best_of": 3, "n": 2, "logprobs": 1, "prompt_logprobs": 2}
TOKENS = {"allowed_token_ids": [65, 66], "bad_words": [], "add_special_tokens": False, "truncate_prompt_tokens": -1}
FULL_SCORING = SCORED | TOKENS | {"suffix": "", "return_token_ids": True, "spaces_between_special_tokens": False}

PROMPT = {
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
WRITTEN = {"max_tokens": 40, "top_k": 50, "stop_sequences": ["x", "lazy"], "output_config": {"effort": "low"}}
MESSAGE = SAMPLED | PROMPT | WRITTEN | {"metadata": {"user_id": "u"}, "service_tier": "auto"}
TOOLS = {
    "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}
INPUT = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
    {"role": "user", "content": "hi"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}', "status": "completed"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "3"}]},
]
BOUNDED = {"max_output_tokens": 6, "max_tool_calls": 2, "parallel_tool_calls": False, "truncation": "disabled"}
STORED = {"service_tier": "auto", "store": True, "user": "ann", "reasoning": {"summary": "auto"}}
INCLUDED = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "text": {"verbosity": "medium"}}
RESPONSE = SAMPLED | BOUNDED | STORED | {"instructions": "be brief", "input": INPUT}
STREAMED_RESPONSE = RESPONSE | INCLUDED | {"stream_options": {"include_obfuscation": False}}
FORMATTED = {
    "stream": False,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "include": ["reasoning.encrypted_content"],
}

VALID: list[tuple[str, dict[str, Any]]] = [
    (path, {"model": "tiny"} | body)
    for path, body in (
        (CHAT, FULL_CHAT),
        (CHAT, FORMATTED_CHAT),
        (CHAT, FORMATTED_CHAT | {"n": 1, "session_id": "s", "max_completion_tokens": 40}),
        (CHAT, {"messages": HI, "max_tokens": 40, "response_format": FORMAT}),
        (CHAT, {"messages": CONTINUED, "continue_final_message": True, "max_tokens": 5}),
        (CHAT, {"messages": HI, "session_id": "s", "max_tokens": 5, "stream": True}),
        (COMPLETIONS, FULL_COMPLETION | {"structured_outputs": {"regex": "[a-z]{1,3}"}}),
        (COMPLETIONS, FULL_COMPLETION | {"structured_outputs": {"choice": ["a", "b"]}}),
        (COMPLETIONS, FULL_SCORING),
        (COMPLETIONS, {"prompt": "The quick", "max_tokens": 8, "temperature": 0, "stream": True}),
        (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 9, "guided_grammar": 'root ::= "a"+ "b"'}),
        ("/v1/tokenize", {"prompt": "ab", "add_special_tokens": False, "return_token_strs": True}),
        ("/v1/tokenize", {"messages": HI, "add_generation_prompt": True}),
        ("/v1/detokenize", {"tokens": [65, 66]}),
        (MESSAGES, MESSAGE),
        (MESSAGES, MESSAGE | {"stream": False}),
        (MESSAGES, {"messages": HI, "max_tokens": 6}),
        (f"{MESSAGES}/count_tokens", PROMPT),
        (f"{MESSAGES}/count_tokens", PROMPT | TOOLS),
        (RESPONSES, STREAMED_RESPONSE),
        (RESPONSES, RESPONSE | FORMATTED),
        (RESPONSES, {"input": "hi", "max_output_tokens": 40}),
    )
]

READS = [
    "/v1/models",
    "/v1/models/tiny",
    "/v1/sessions/s",
    "/v1/responses/resp_00000000000000000000000000000000",
    "/v1/responses/resp_00000000000000000000000000000000/input_items?limit=2",
    "/v1/limits",
    "/v1/usage?group_by=model",
    "/healthz",
    "/readyz",
    "/metrics",
]

NEIGHBOURS: list[tuple[str, dict[str, Any]]] = [
    (path, {"model": "tiny", "max_tokens": 60, "stream": True} | body)
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}),
        (COMPLETIONS, {"prompt": "A queue is", "seed": 7, "n": 2, "ignore_eos": True}),
        (
            CHAT,
            {
                "messages": [{"role": "user", "content": "A list, please."}],
                "guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 8, "maxItems": 12},
                "seed": 8,
            },
        ),
    )
]
"""Streams whose text is known. Nothing that others send may change it."""


def bodies_of(prefix: str) -> list[tuple[str, dict[str, Any]]]:
    """The valid bodies of the paths that start with `prefix`."""
    return [(path, body) for path, body in VALID if path.startswith(prefix)]
