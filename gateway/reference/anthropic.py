"""Schemas of Anthropic's Messages."""

from engine.request import MAX_STOP_STRINGS
from gateway.formats.anthropic.blocks import MAX_BLOCKS
from gateway.formats.anthropic.schema import MIN_THINKING_TOKENS, REFUSED_MESSAGES
from gateway.formats.anthropic.tools import MAX_TOOLS
from gateway.formats.openai.sampling import MAX_TOKEN_ID, MAX_TOKENS
from gateway.http.bounds import MAX_MESSAGES, MAX_STOP_CHARS
from gateway.reference.generation import JSON_SCHEMA, MODEL
from gateway.reference.generation_answers import COUNT
from gateway.reference.parts import (
    ANY_OBJECT,
    NULL,
    Schema,
    answered,
    asked,
    boolean,
    choice,
    integer,
    listed,
    nullable,
    number,
    one_of,
    ref,
    refused,
    text,
)

_HINT: dict[str, Schema] = {"cache_control": ANY_OBJECT | {"description": "A hint: every prefix is cached."}}
_TEXT_BLOCK = asked({"type": choice("text"), "text": text()}, _HINT | refused({"citations": ([],)}))
_TEXTS = one_of(text(), listed(_TEXT_BLOCK, 0, MAX_BLOCKS))
_CALL = {"id": text(minLength=1), "name": text(minLength=1), "input": ANY_OBJECT}
_BLOCKS = one_of(
    _TEXT_BLOCK,
    asked(
        {"type": choice("tool_use"), **_CALL},
        _HINT | refused({"caller": ({"type": "direct"},), "toolset_name": ()}),
    ),
    asked(
        {"type": choice("tool_result"), "tool_use_id": text(minLength=1)},
        {"content": _TEXTS, "is_error": boolean(), **_HINT, **refused({"toolset_name": ()})},
    ),
    asked({"type": choice("thinking"), "thinking": text()}, {"signature": text(), **_HINT}),
    asked({"type": choice("redacted_thinking")}, {"data": text(), **_HINT}),
)
_TOOL = asked(
    {"name": text(pattern="^[A-Za-z0-9_-]{1,128}$"), "input_schema": ANY_OBJECT},
    {
        "type": choice("custom"),
        "description": text(),
        "strict": boolean(),
        "eager_input_streaming": boolean(),
        **_HINT,
        **refused({"allowed_callers": (["direct"],), "defer_loading": (False,), "input_examples": ([],)}),
    },
)
_THINKING = one_of(
    asked(
        {"type": choice("enabled"), "budget_tokens": integer(MIN_THINKING_TOKENS, MAX_TOKENS)},
        {"display": choice("summarized", "omitted")},
    ),
    asked({"type": choice("adaptive")}, {"display": choice("summarized", "omitted")}),
    asked({"type": choice("disabled")}),
)
_QUESTION: dict[str, Schema] = {
    "system": _TEXTS,
    "tools": listed(_TOOL, 0, MAX_TOOLS),
    "tool_choice": asked(
        {"type": choice("auto", "any", "tool", "none")},
        {"name": text(minLength=1), "disable_parallel_tool_use": boolean()},
    ),
    "thinking": _THINKING,
    "output_config": asked(
        {},
        {
            "effort": choice("low", "medium", "high", "xhigh", "max"),
            "format": asked({"type": choice("json_schema"), "schema": JSON_SCHEMA}),
        },
    ),
    **_HINT,
    **refused(REFUSED_MESSAGES),
}
_REQUIRED: dict[str, Schema] = {
    "model": MODEL,
    "messages": listed(
        asked(
            {"role": choice("user", "assistant", "system"), "content": one_of(text(), listed(_BLOCKS, 0, MAX_BLOCKS))}
        ),
        1,
        MAX_MESSAGES,
    ),
}
_INPUT = dict.fromkeys(("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"), COUNT)

COMPONENTS: dict[str, Schema] = {
    "MessagesRequest": asked(
        _REQUIRED | {"max_tokens": integer(1, MAX_TOKENS)},
        {
            **_QUESTION,
            "temperature": number(0, 1, "The model's own default if absent."),
            "top_p": number(0, 1),
            "top_k": integer(0, MAX_TOKEN_ID),
            "stop_sequences": listed(text(minLength=1, maxLength=MAX_STOP_CHARS), 0, MAX_STOP_STRINGS),
            "stream": boolean(),
            "service_tier": choice("auto", "standard_only"),
            "metadata": asked({}, {"user_id": text()}),
        },
    ),
    "CountTokensRequest": asked(_REQUIRED, _QUESTION),
    "AnthropicMessage": answered(
        {
            "id": text(),
            "type": choice("message"),
            "role": choice("assistant"),
            "model": text(),
            "content": listed(
                one_of(
                    answered({"type": choice("text"), "text": text()}),
                    answered({"type": choice("thinking"), "thinking": text(), "signature": text()}),
                    answered({"type": choice("tool_use"), "id": text(), "name": text(), "input": ANY_OBJECT}),
                )
            ),
            "stop_reason": nullable(
                choice("end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded")
            ),
            "stop_sequence": nullable(text()),
            "stop_details": NULL,
            "usage": answered(
                {**_INPUT, "output_tokens": COUNT},
                {
                    "output_tokens_details": answered({"thinking_tokens": COUNT}),
                    "service_tier": choice("standard", "priority"),
                },
            ),
        }
    ),
    "AnthropicEvent": {
        "type": "object",
        "description": "`type` is also the name of the event; other members depend on it, as in Anthropic's API.",
        "properties": {
            "type": choice(
                *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
                *("message_delta", "message_stop", "ping", "error"),
            ),
            "message": ref("AnthropicMessage"),
        },
        "required": ["type"],
    },
    "TokenCount": answered({"input_tokens": COUNT}),
    "AnthropicError": answered(
        {"type": choice("error"), "error": answered({"type": text(), "message": text()})}, {"request_id": text()}
    ),
}
