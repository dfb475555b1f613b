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
PROMPT = {
    "model": "tiny",
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t", "name": "add", "input": {"a": [1]}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "3", "is_error": False}]},
    ],
    "thinking": {"type": "disabled"},
}
TOOLS = {
    "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}

VALID: list[tuple[str, dict[str, Any]]] = [
    (
        CHAT,
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hi", "name": "ann"},
                {"role": "assistant", "content": "yes", "tool_calls": [CALL]},
                {"role": "tool", "content": "3", "tool_call_id": "c"},
                {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
            ],
            "max_completion_tokens": 6,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 50,
            "min_p": 0.01,
            "n": 2,
            "stop": ["x", "lazy"],
            "seed": 1,
            "frequency_penalty": 0.5,
            "presence_penalty": -0.5,
            "repetition_penalty": 1.1,
            "logit_bias": {"65": 1, "66": -100},
            "logprobs": True,
            "top_logprobs": 2,
            "min_tokens": 2,
            "ignore_eos": False,
            "stop_token_ids": [300],
            "stream": True,
            "stream_options": {"include_usage": True},
            "metadata": {"a": "b"},
            "user": "ann",
            "chat_template_kwargs": {"a": True},
        },
    ),
    (
        CHAT,
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 40,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
        },
    ),
    (
        CHAT,
        {
            "model": "tiny",
            "session_id": "s",
            "messages": [{"role": "user", "content": "go on"}],
            "max_tokens": 5,
            "stream": True,
        },
    ),
    (
        CHAT,
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}],
            "continue_final_message": True,
            "max_tokens": 5,
        },
    ),
    (
        COMPLETIONS,
        {
            "model": "tiny",
            "prompt": [[5, 6, 7], [8]],
            "max_tokens": 3,
            "echo": True,
            "logprobs": 2,
            "n": 2,
            "best_of": 2,
            "suffix": None,
            "stop": "x",
            "logit_bias": {"1": -100},
            "structured_outputs": {"regex": "[a-z]{1,3}"},
        },
    ),
    (COMPLETIONS, {"model": "tiny", "prompt": "The quick", "max_tokens": 8, "temperature": 0, "stream": True}),
    (COMPLETIONS, {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 9, "guided_grammar": 'root ::= "a"+ "b"'}),
    ("/v1/tokenize", {"model": "tiny", "prompt": "ab", "add_special_tokens": False, "return_token_strs": True}),
    ("/v1/tokenize", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}),
    ("/v1/detokenize", {"model": "tiny", "tokens": [65, 66]}),
    (
        MESSAGES,
        PROMPT
        | {
            "max_tokens": 40,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 50,
            "stop_sequences": ["x", "lazy"],
            "stream": True,
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
        },
    ),
    (MESSAGES, {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}),
    (f"{MESSAGES}/count_tokens", PROMPT | TOOLS),
    (
        RESPONSES,
        {
            "model": "tiny",
            "instructions": "be brief",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
                {"type": "function_call_output", "call_id": "c", "output": "3"},
            ],
            "max_output_tokens": 6,
            "temperature": 0.5,
            "top_p": 0.9,
            "metadata": {"a": "b"},
            "stream": True,
        },
    ),
    (
        RESPONSES,
        {
            "model": "tiny",
            "input": "hi",
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
            "max_output_tokens": 40,
        },
    ),
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
    (
        CHAT,
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 60,
            "temperature": 0,
            "stream": True,
        },
    ),
    (
        COMPLETIONS,
        {
            "model": "tiny",
            "prompt": "A queue is",
            "max_tokens": 60,
            "seed": 7,
            "n": 2,
            "ignore_eos": True,
            "stream": True,
        },
    ),
    (
        CHAT,
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "A list, please."}],
            "guided_json": {"type": "array", "items": {"type": "integer"}, "minItems": 8, "maxItems": 12},
            "max_tokens": 60,
            "seed": 8,
            "stream": True,
        },
    ),
]
"""Streams whose text is known. Nothing that others send may change it."""
