"""Schemas of OpenAI's Responses."""

from engine.request import MAX_TOP_LOGPROBS
from gateway.formats.openai.chat_messages import EFFORTS
from gateway.formats.openai.sampling import MAX_TOKENS
from gateway.formats.openai.tool_schema import MAX_TOOLS
from gateway.formats.openai_responses.schema import MAX_INCLUDES, REFUSED
from gateway.http.bounds import MAX_MESSAGES
from gateway.reference.generation import HINT_MEMBERS, METADATA, MODEL, SERVICE_TIER
from gateway.reference.generation_answers import CHAT_TOKEN, COUNT, LIMITED_BY
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

_STATUS = choice("in_progress", "completed", "incomplete")
_PARTS = listed(ref("ResponseContentPart"), 1)
_SPOKEN = listed(answered({"type": choice("summary_text", "reasoning_text"), "text": text()}))
_TOOLS = listed(ANY_OBJECT, 0, MAX_TOOLS, "Functions, alone or in namespaces.")
_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")

_REASONING_HINTS = ("summary", "generate_summary", "context")

COMPONENTS: dict[str, Schema] = {
    "ResponseContentPart": answered(
        {"type": choice("input_text", "output_text", "refusal")},
        {"text": text(), "refusal": text(), "annotations": listed({}), "logprobs": nullable(listed(CHAT_TOKEN))},
    ),
    "ResponseInputItem": {
        "type": "object",
        "description": "A message, a function call, its output, reasoning, or a reference to a stored item.",
        "properties": {
            "type": nullable(choice(*_ITEM_TYPES)),
            "role": nullable(choice("user", "assistant", "system", "developer")),
            "content": {},
            "status": nullable(_STATUS),
        },
    },
    "ResponseRequest": asked(
        {
            "model": MODEL,
            "input": one_of(text(), listed(ref("ResponseInputItem"), 0, MAX_MESSAGES)),
        },
        {
            "instructions": text(),
            "previous_response_id": text("A stored response that the input continues."),
            "tools": _TOOLS,
            "tool_choice": one_of(choice("none", "auto", "required"), ANY_OBJECT),
            "parallel_tool_calls": boolean(),
            "text": asked({}, {"format": ANY_OBJECT, "verbosity": {"enum": ["medium"]}}),
            "reasoning": asked({}, {"effort": choice(*EFFORTS), **refused(dict.fromkeys(_REASONING_HINTS, ("auto",)))}),
            "include": listed(text(), 0, MAX_INCLUDES),
            "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
            "max_output_tokens": integer(1, MAX_TOKENS),
            "max_tool_calls": integer(1, MAX_TOKENS),
            "temperature": number(0, 2, "The model's own default if absent."),
            "top_p": number(0, 1),
            "stream": boolean(),
            "stream_options": asked({}, {"include_obfuscation": {"enum": [False]}}),
            "store": boolean("True if absent: kept for an hour."),
            "service_tier": SERVICE_TIER,
            "client_metadata": ANY_OBJECT,
            **HINT_MEMBERS,
            **refused(REFUSED),
        },
    ),
    "ResponseItem": one_of(
        answered(
            {
                "id": text(),
                "type": choice("message"),
                "status": _STATUS,
                "role": choice("user", "assistant", "system", "developer"),
                "content": listed(ref("ResponseContentPart")),
            }
        ),
        answered(
            {
                "id": text(),
                "type": choice("function_call"),
                "status": _STATUS,
                "call_id": text(),
                "name": text(),
                "arguments": text(),
            },
            {"namespace": text()},
        ),
        answered(
            {
                "id": text(),
                "type": choice("function_call_output"),
                "status": _STATUS,
                "call_id": text(),
                "output": one_of(text(), _PARTS),
            }
        ),
        answered(
            {"id": text(), "type": choice("reasoning"), "status": _STATUS, "summary": _SPOKEN, "content": _SPOKEN}
        ),
    ),
    "ResponseUsage": answered(
        {
            "input_tokens": COUNT,
            "input_tokens_details": answered({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
            "output_tokens": COUNT,
            "output_tokens_details": answered({"reasoning_tokens": COUNT}),
            "total_tokens": COUNT,
        },
        {"limited_by": LIMITED_BY},
    ),
    "Response": answered(
        {
            "id": text(),
            "object": choice("response"),
            "created_at": integer(0),
            "completed_at": nullable(integer(0)),
            "status": choice("in_progress", "completed", "incomplete", "failed"),
            "background": {"enum": [False]},
            "error": nullable(answered({"code": text(), "message": text()})),
            "incomplete_details": nullable(answered({"reason": choice("max_output_tokens")})),
            "model": text(),
            "output": listed(ref("ResponseItem")),
            "service_tier": nullable(text()),
            "temperature": number(),
            "top_p": number(),
            "usage": nullable(ref("ResponseUsage")),
            "instructions": nullable(text()),
            "max_output_tokens": nullable(COUNT),
            "max_tool_calls": nullable(COUNT),
            "metadata": METADATA,
            "previous_response_id": nullable(text()),
            "reasoning": answered({"effort": nullable(choice(*EFFORTS)), "summary": NULL}),
            "store": boolean(),
            "text": ANY_OBJECT,
            "top_logprobs": COUNT,
            "truncation": {"enum": ["disabled"]},
            "tools": listed(ANY_OBJECT),
            "tool_choice": {},
            "parallel_tool_calls": boolean(),
            **{name: nullable(text()) for name in ("user", "safety_identifier", "prompt_cache_key")},
        }
    ),
    "ResponseEvent": {
        "type": "object",
        "description": "`type` is also the name of the event; other members depend on it, as in OpenAI's API.",
        "properties": {"type": text(), "sequence_number": COUNT},
        "required": ["type", "sequence_number"],
    },
    "ResponseInputItems": answered(
        {
            "object": choice("list"),
            "data": listed(ref("ResponseItem")),
            "first_id": nullable(text()),
            "last_id": nullable(text()),
            "has_more": boolean(),
        }
    ),
    "DeletedResponse": answered({"id": text(), "object": choice("response"), "deleted": {"enum": [True]}}),
}
