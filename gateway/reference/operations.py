"""The operations of `/v1`: their bodies, answers and examples. A new endpoint is listed here; a test compares the list
with the application's routes, sends every example and validates every answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gateway.formats.openai_responses.stored import DEFAULT_PAGE, MAX_PAGE
from gateway.management.http.self_service import OWN_REFUSALS_QUERY, OWN_USAGE_QUERY
from gateway.management.operations.schema import Member
from gateway.reference.parts import Schema, choice, integer, text

QUESTION = "What is the capital of France?"
_MESSAGES = [{"role": "user", "content": QUESTION}]
_SESSION_HEADER: Schema = {
    "name": "x-turnpike-session",
    "in": "header",
    "required": False,
    "schema": text(),
    "description": "The same as `session_id`.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `body`, `answer`, `event`: names of components; `event` is that of a streamed answer.
    `examples`: bodies by name; the first is the one to try."""

    method: str
    path: str
    name: str
    about: str
    tag: str
    answer: str
    body: str | None = None
    event: str | None = None
    parameters: Sequence[Schema] = ()
    examples: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def path_names(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _parameters(query: Mapping[str, Member]) -> tuple[Schema, ...]:
    return tuple(
        {"name": name, "in": "query", "required": member.required, "schema": member.describe()}
        | ({"style": "form", "explode": False} if name == "by" else {})
        for name, member in query.items()
    )


_PAGE = (
    _query("limit", integer(1, MAX_PAGE, f"{DEFAULT_PAGE} if absent.")),
    _query("after", text("Id of the item before the page.")),
    _query("order", choice("asc", "desc")),
)


def operations(model: str) -> tuple[Operation, ...]:
    """All of them. `model`: the model of the examples."""
    asking = {"model": model, "messages": _MESSAGES}
    tool = {"name": "get_weather", "description": "The weather of a city."}
    arguments = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    place = {"name": "place", "strict": True, "schema": arguments | {"additionalProperties": False}}
    calling = asking | {"tools": [{"type": "function", "function": tool | {"parameters": arguments}}]}
    return (
        Operation(
            *("POST", "/v1/chat/completions", "createChatCompletion", "Answer a chat.", "OpenAI"),
            *("ChatCompletion", "ChatCompletionRequest", "ChatCompletionChunk", (_SESSION_HEADER,)),
            examples={
                "question": asking,
                "stream": asking | {"stream": True, "stream_options": {"include_usage": True}},
                "tool": calling | {"tool_choice": "auto"},
                "structured": asking | {"response_format": {"type": "json_schema", "json_schema": place}},
                "session": asking | {"session_id": "first"},
                "logprobs": asking | {"logprobs": True, "top_logprobs": 2, "seed": 1, "max_tokens": 8},
            },
        ),
        Operation(
            *("POST", "/v1/completions", "createCompletion", "Continue a text.", "OpenAI"),
            *("Completion", "CompletionRequest", "Completion"),
            examples={
                "text": {"model": model, "prompt": "The capital of France is", "max_tokens": 8},
                "stream": {"model": model, "prompt": "The capital of France is", "stream": True},
                "echo": {"model": model, "prompt": ["a", "b"], "echo": True, "logprobs": 1, "max_tokens": 2},
            },
        ),
        Operation(
            *("POST", "/v1/responses", "createResponse", "Answer items in OpenAI's Responses API.", "OpenAI"),
            *("Response", "ResponseRequest", "ResponseEvent"),
            examples={
                "question": {"model": model, "input": QUESTION},
                "stream": {"model": model, "input": _MESSAGES, "stream": True, "store": False},
            },
        ),
        Operation("GET", "/v1/responses/{id}", "readResponse", "Read a stored response.", "OpenAI", "Response"),
        Operation(
            "DELETE", "/v1/responses/{id}", "deleteResponse", "Delete a stored response.", "OpenAI", "DeletedResponse"
        ),
        Operation(
            *("GET", "/v1/responses/{id}/input_items", "listInputItems", "List the input of a response.", "OpenAI"),
            "ResponseInputItems",
            parameters=_PAGE,
        ),
        Operation(
            *("POST", "/v1/embeddings", "createEmbeddings", "Embed texts.", "OpenAI"),
            *("Embeddings", "EmbeddingRequest"),
            examples={"texts": {"model": model, "input": ["Paris", "Rome"]}},
        ),
        Operation("GET", "/v1/models", "listModels", "List the models that the key may use.", "OpenAI", "ModelList"),
        Operation("GET", "/v1/models/{id}", "readModel", "Read one of them.", "OpenAI", "Model"),
        Operation(
            *("POST", "/v1/messages", "createMessage", "Answer a chat in Anthropic's Messages API.", "Anthropic"),
            *("AnthropicMessage", "MessagesRequest", "AnthropicEvent"),
            examples={
                "question": asking | {"max_tokens": 64},
                "stream": asking | {"max_tokens": 64, "stream": True},
                "tool": asking | {"max_tokens": 64, "tools": [tool | {"input_schema": arguments}]},
            },
        ),
        Operation(
            *("POST", "/v1/messages/count_tokens", "countTokens", "Count the tokens of a prompt.", "Anthropic"),
            *("TokenCount", "CountTokensRequest"),
            examples={"question": asking},
        ),
        Operation(
            *("POST", "/v1/tokenize", "tokenize", "Encode a prompt, as in vLLM.", "Tokens"),
            *("Tokens", "TokenizeRequest"),
            examples={"text": {"model": model, "prompt": "Paris", "return_token_strs": True}, "chat": asking},
        ),
        Operation(
            *("POST", "/v1/detokenize", "detokenize", "Decode token ids.", "Tokens"),
            *("DetokenizedPrompt", "DetokenizeRequest"),
            examples={"ids": {"model": model, "tokens": [72, 105]}},
        ),
        Operation("GET", "/v1/sessions/{id}", "readSession", "Read a conversation that is kept.", "Tenant", "Session"),
        Operation("DELETE", "/v1/sessions/{id}", "deleteSession", "Delete a conversation.", "Tenant", "DeletedSession"),
        Operation(
            *("GET", "/v1/usage", "readOwnUsage", "Sum the tenant's own usage.", "Tenant", "OwnUsage"),
            parameters=_parameters(OWN_USAGE_QUERY),
        ),
        Operation(
            *("GET", "/v1/refusals", "readOwnRefusals", "Count the tenant's own refused requests.", "Tenant"),
            "OwnRefusals",
            parameters=_parameters(OWN_REFUSALS_QUERY),
        ),
        Operation("GET", "/v1/limits", "readOwnLimits", "Read the tenant's own limits.", "Tenant", "OwnLimits"),
    )
