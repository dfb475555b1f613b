"""Schemas of the answers of chat and completions."""

from gateway.admission.model import Measure
from gateway.reference.generation import TOKEN_IDS
from gateway.reference.parts import (
    ANY_OBJECT,
    NULL,
    Schema,
    answered,
    boolean,
    choice,
    integer,
    listed,
    nullable,
    number,
    text,
)
from gateway.tenancy.limits import ScopeKind

COUNT = integer(0)
LIMITED_BY = answered(
    {"scope": choice(*ScopeKind), "limit": choice(*Measure)},
)
_TOKEN = {"token": text(), "logprob": number(), "bytes": listed(integer(0, 255))}
CHAT_TOKEN = answered({**_TOKEN, "top_logprobs": listed(answered(_TOKEN))})
_CHAT_LOGPROBS = nullable(answered({"content": listed(CHAT_TOKEN), "refusal": NULL}))
_LOGPROBS = nullable(
    answered(
        {
            "tokens": listed(text()),
            "token_logprobs": listed(nullable(number())),
            "top_logprobs": listed(nullable({"type": "object", "additionalProperties": number()})),
            "text_offset": listed(COUNT),
        }
    )
)
_PROMPT_DETAILS: dict[str, Schema] = {
    "prompt_token_ids": TOKEN_IDS,
    "prompt_logprobs": listed(nullable(ANY_OBJECT), about="By position and token id: logprob, rank, decoded_token."),
}
_CALL = {
    "id": text(),
    "type": choice("function"),
    "function": answered({"name": text(), "arguments": text("JSON, incomplete where the answer was cut off.")}),
}
_CALL_DELTA = answered(
    {"index": COUNT, "function": answered({"arguments": text()}, {"name": text()})},
    {"id": text(), "type": choice("function")},
)
_FINISH = choice("stop", "length", "tool_calls")


def _head(kind: str) -> dict[str, Schema]:
    return {
        "id": text("The request's id in usage and bills."),
        "object": choice(kind),
        "created": integer(0, about="Unix time."),
        "model": text("The model that answered."),
        "system_fingerprint": text(),
    }


def _chat_choice(message: dict[str, Schema], finish: Schema) -> Schema:
    return answered(
        {"index": COUNT, **message, "logprobs": _CHAT_LOGPROBS, "finish_reason": finish}, {"token_ids": TOKEN_IDS}
    )


_MESSAGE = answered(
    {"role": choice("assistant"), "content": nullable(text()), "refusal": NULL},
    {"reasoning_content": text(), "tool_calls": listed(answered(_CALL))},
)
_DELTA = answered(
    {},
    {
        "role": choice("assistant"),
        "content": text(),
        "refusal": NULL,
        "reasoning_content": text(),
        "tool_calls": listed(_CALL_DELTA),
    },
)
_COMPLETION_CHOICE = answered(
    {"index": COUNT, "text": text(), "logprobs": _LOGPROBS, "finish_reason": nullable(_FINISH)},
    {"token_ids": TOKEN_IDS, **_PROMPT_DETAILS},
)
_USAGE_REF: Schema = {"$ref": "#/components/schemas/CompletionUsage"}
_TIER: dict[str, Schema] = {"service_tier": text("If the request stated one.")}

COMPONENTS: dict[str, Schema] = {
    "CompletionUsage": answered(
        {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
        {
            "prompt_tokens_details": answered({"cached_tokens": COUNT, "audio_tokens": COUNT}),
            "completion_tokens_details": answered(
                {
                    "reasoning_tokens": COUNT,
                    "audio_tokens": COUNT,
                    "accepted_prediction_tokens": COUNT,
                    "rejected_prediction_tokens": COUNT,
                }
            ),
            "limited_by": LIMITED_BY | {"description": "The limit that ended the answer."},
            "estimated": boolean("Whether the tokens are estimated: the model's server reports none."),
        },
    ),
    "ChatCompletion": answered(
        {
            **_head("chat.completion"),
            "choices": listed(_chat_choice({"message": _MESSAGE}, _FINISH)),
            "usage": _USAGE_REF,
        },
        _TIER | _PROMPT_DETAILS,
    ),
    "ChatCompletionChunk": answered(
        {**_head("chat.completion.chunk"), "choices": listed(_chat_choice({"delta": _DELTA}, nullable(_FINISH)))},
        {"usage": nullable(_USAGE_REF), **_TIER, **_PROMPT_DETAILS},
    ),
    "Completion": answered(
        {**_head("text_completion"), "choices": listed(_COMPLETION_CHOICE)},
        {"usage": nullable(_USAGE_REF), **_TIER},
    ),
}
