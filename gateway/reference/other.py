"""Schemas of embeddings, models, tokens, sessions, a tenant's own usage and limits, and errors."""

from gateway.analytics.sums import Grain
from gateway.formats.openai.embedding_schema import REFUSED, Encoding
from gateway.formats.openai.sampling import MAX_TOKEN_ID
from gateway.http.bounds import MAX_DETOKENIZED_TOKENS, MAX_EMBEDDING_INPUTS
from gateway.management.operations.limit_use import COUNTER
from gateway.management.operations.refusals import REFUSAL_POINT_MEMBERS
from gateway.management.operations.schema import answer
from gateway.management.operations.usage import USAGE_POINT_MEMBERS
from gateway.management.operations.wire import LIMITS
from gateway.reference.generation import (
    CONVERSATION,
    HINT_MEMBERS,
    MESSAGES,
    MODEL,
    SERVICE_TIER,
    TOKEN_IDS,
    TOOLS,
    TRUNCATION,
)
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
from gateway.tenancy.grants import KeyScope

_INPUTS = one_of(
    text(),
    listed(text(), 1, MAX_EMBEDDING_INPUTS),
    TOKEN_IDS | {"minItems": 1},
    listed(TOKEN_IDS | {"minItems": 1}, 1, MAX_EMBEDDING_INPUTS),
)
_POINT = answer("OwnUsagePoint", {name: each for name, each in USAGE_POINT_MEMBERS.items() if name != "tenant"})
_REFUSAL_POINT = answer(
    "OwnRefusalPoint", {name: each for name, each in REFUSAL_POINT_MEMBERS.items() if name != "tenant"}
)
_WINDOW = {"start": text(format="date-time"), "end": text(format="date-time"), "bucket": choice(*Grain)}
_PARAMETERS = {
    name: nullable(number())
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    )
}
_TOKENIZE: dict[str, Schema] = {"return_token_strs": boolean(), **CONVERSATION, **TOOLS}

COMPONENTS: dict[str, Schema] = {
    "EmbeddingRequest": asked(
        {"model": MODEL, "input": _INPUTS},
        {
            "encoding_format": choice(*Encoding),
            "dimensions": NULL | {"description": "Not supported."},
            "add_special_tokens": boolean(),
            "service_tier": SERVICE_TIER,
            **TRUNCATION,
            **HINT_MEMBERS,
            **refused(REFUSED),
        },
    ),
    "Embeddings": answered(
        {
            "object": choice("list"),
            "data": listed(
                answered(
                    {
                        "object": choice("embedding"),
                        "index": COUNT,
                        "embedding": one_of(listed(number()), text("Base64 of little-endian float32.")),
                    }
                )
            ),
            "id": text(),
            "model": text(),
            "usage": answered(
                {
                    "prompt_tokens": COUNT,
                    "total_tokens": COUNT,
                    "prompt_tokens_details": answered({"cached_tokens": COUNT}),
                }
            ),
        },
        {"service_tier": text()},
    ),
    "Model": answered(
        {
            "id": text(),
            "object": choice("model"),
            "created": COUNT,
            "owned_by": text(),
            "max_model_len": integer(1, about="Tokens of prompt and answer together."),
            "context_window": integer(1, about="The same."),
            "default_parameters": answered(_PARAMETERS)
            | {"description": "Of a request that does not state them; null: the models of the name differ."},
        },
        {
            "root": text("Of an adapter: its name with its tenant's."),
            "parent": text("Of an adapter: its base model."),
        },
    ),
    "ModelList": answered({"object": choice("list"), "data": listed(ref("Model"))}),
    "TokenizeRequest": one_of(
        asked({"model": MODEL, "prompt": text()}, {"add_special_tokens": boolean(), "return_token_strs": boolean()}),
        asked({"model": MODEL, "messages": MESSAGES}, _TOKENIZE | refused({"add_special_tokens": (True,)})),
    ),
    "Tokens": answered(
        {"count": COUNT, "max_model_len": COUNT, "tokens": TOKEN_IDS, "token_strs": nullable(listed(text()))}
    ),
    "DetokenizeRequest": asked({"model": MODEL, "tokens": listed(integer(0, MAX_TOKEN_ID), 1, MAX_DETOKENIZED_TOKENS)}),
    "DetokenizedPrompt": answered({"prompt": text()}),
    "Session": answered(
        {
            "id": text(),
            "object": choice("session"),
            "turns": integer(0, about="Of `messages`."),
            "dropped_turns": integer(0, about="Earlier turns, which only the summary has."),
            "summary": nullable(text()),
            "expires_in_s": COUNT,
            "stored_bytes": COUNT,
            "messages": listed(ANY_OBJECT),
        }
    ),
    "DeletedSession": answered({"id": text(), "object": choice("session.deleted"), "deleted": {"enum": [True]}}),
    "OwnUsage": answered({**_WINDOW, "data": listed(_POINT.define(answer=True))}),
    "OwnRefusals": answered({**_WINDOW, "data": listed(_REFUSAL_POINT.define(answer=True))}),
    "OwnLimits": answered(
        {
            "tier": text(),
            "limits": listed(LIMITS.define(answer=True)),
            "counters": listed(COUNTER.define(answer=True)),
            "key": answered(
                {
                    "id": text(),
                    "scopes": nullable(listed(choice(*KeyScope))),
                    "models": nullable(listed(text())),
                }
            ),
        }
    ),
    "Error": answered(
        {
            "error": answered(
                {"message": text(), "type": text(), "param": nullable(text()), "code": nullable(text())},
                {"limit": ANY_OBJECT | {"description": "The limit that rejected the request."}},
            )
        }
    ),
}
