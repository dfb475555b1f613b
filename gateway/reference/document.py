"""The OpenAPI document of `/v1`."""

from importlib.metadata import version
from typing import Any

from gateway.http.anthropic_errors import OVERLOADED_STATUS, is_anthropic
from gateway.reference import anthropic, generation, generation_answers, other, responses
from gateway.reference.operations import Operation, operations
from gateway.reference.parts import Schema, ref, text

EXAMPLE_MODEL = "smollm2"
_JSON = "application/json"
_ERRORS = {
    400: "Invalid parameter; the error names it.",
    401: "Missing or invalid API key.",
    403: "The key lacks the scope or the model, or the tenant is suspended.",
    404: "Unknown URL, model or record.",
    405: "Method not allowed.",
    408: "The body did not arrive in time.",
    409: "Conflict with another request of the session.",
    413: "The body is too large.",
    414: "The URL is too long.",
    415: "The body is not plain UTF-8 JSON.",
    429: "A limit, a budget or the queue is full; Retry-After says when it may not be.",
    431: "Too many headers.",
    500: "Internal error.",
    503: "A store does not answer, or the server is shutting down.",
}


def v1_document(model: str = EXAMPLE_MODEL) -> dict[str, Any]:
    """OpenAPI 3.1. `model`: the model of the examples."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations(model):
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnpike API",
            "version": version("turnpike"),
            "description": (
                "OpenAI's and Anthropic's APIs, with vLLM's extensions. Unknown members are refused. A key is sent as "
                "`Authorization: Bearer`, or as `x-api-key`."
            ),
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"header": []}],
        "paths": paths,
        "components": {
            "schemas": components(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key from `turnpike key create`."},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def components() -> dict[str, Schema]:
    """All schemas by name."""
    schemas: dict[str, Schema] = {}
    for module in (generation, generation_answers, responses, anthropic, other):
        assert not schemas.keys() & module.COMPONENTS.keys(), "two schemas have one name"
        schemas |= module.COMPONENTS
    return schemas


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "tags": [operation.tag],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": text()} for name in operation.path_names),
            *operation.parameters,
        ],
        "responses": {"200": _answer(operation), **_errors(operation.path)},
    }
    if operation.body is not None:
        content: dict[str, Any] = {"schema": ref(operation.body)}
        if operation.examples:
            content["examples"] = {name: {"value": value} for name, value in operation.examples.items()}
        described["requestBody"] = {"required": True, "content": {_JSON: content}}
    return described


def _answer(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {_JSON: {"schema": ref(operation.answer)}}
    if operation.event is not None:
        # OpenAPI 3.1 has no schema for the data of events, hence the extension.
        content["text/event-stream"] = {"schema": {"type": "string"}, "x-event-schema": ref(operation.event)}
    return {"description": "Done.", "content": content}


def _errors(path: str) -> dict[str, Any]:
    name, errors = "Error", dict(_ERRORS)
    if is_anthropic(path):
        name = "AnthropicError"
        errors[OVERLOADED_STATUS] = "Overloaded."
    return {
        str(status): {"description": about, "content": {_JSON: {"schema": ref(name)}}}
        for status, about in sorted(errors.items())
    }
