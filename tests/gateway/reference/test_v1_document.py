"""The OpenAPI document of `/v1` agrees with the gateway: routes, members, examples, answers and refusals."""

import re
from typing import Any

import jsonschema
import orjson
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from gateway.formats.anthropic.schema import parse_count, parse_messages
from gateway.formats.openai.chat_schema import parse_chat
from gateway.formats.openai.completion_schema import parse_completion
from gateway.formats.openai.embedding_schema import parse_embeddings
from gateway.formats.openai_responses.schema import parse_response
from gateway.http.fields import Fields
from gateway.reference.document import v1_document
from gateway.reference.operations import Operation, operations
from tests.support.gateway import CHAT, USER

MODEL = "tiny"
DOCUMENT = v1_document(MODEL)
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = operations(MODEL)
EXAMPLES = [
    pytest.param(operation, body, id=f"{operation.name}-{name}")
    for operation in OPERATIONS
    for name, body in operation.examples.items()
    if operation.path != "/v1/embeddings"  # of a model that has them: below
]
PARSERS = {
    "ChatCompletionRequest": parse_chat,
    "CompletionRequest": parse_completion,
    "EmbeddingRequest": parse_embeddings,
    "ResponseRequest": parse_response,
    "MessagesRequest": parse_messages,
    "CountTokensRequest": parse_count,
}
WRONG = {"a": [{"b": None}]}
"""A value that no member accepts, unless it accepts any object."""


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )


def body_of(name: str) -> dict[str, Any]:
    return next(dict(each.examples[next(iter(each.examples))]) for each in OPERATIONS if each.body == name)


def check_answer(operation: Operation, response) -> None:
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        validator(operation.answer).validate(response.json())
        return
    assert operation.event is not None
    events = [orjson.loads(data) for data in re.findall(r"^data: ({.*})$", response.text, re.MULTILINE)]
    assert len(events) > 2
    for event in events:
        validator(operation.event).validate(event)


def test_every_route_is_in_it(app) -> None:
    served = {
        (method, re.sub(r":path(?=})", "", route.path))
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith("/v1/")
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item} == served


@pytest.mark.parametrize("name", PARSERS)
def test_a_body_has_the_members_that_the_server_reads(name, monkeypatch) -> None:
    """All of a body's own members, read or refused by name: a parser takes each of them by name, there or not."""
    taken: set[str] = set()
    take, finish = Fields.take, Fields.finish

    def note_take(fields: Fields, member: str) -> object:
        taken.update([member] if fields.path("") == "" else [])
        return take(fields, member)

    def note_finish(fields: Fields, refused) -> None:
        taken.update(refused if fields.path("") == "" else [])
        finish(fields, refused)

    monkeypatch.setattr(Fields, "take", note_take)
    monkeypatch.setattr(Fields, "finish", note_finish)
    PARSERS[name](Fields(body_of(name)))
    assert SCHEMAS[name]["properties"].keys() == taken


@pytest.mark.parametrize("name", PARSERS)
def test_a_member_of_a_wrong_type_is_refused_by_both(client, name) -> None:
    path = next(each.path for each in OPERATIONS if each.body == name)
    for member in SCHEMAS[name]["properties"]:
        body = body_of(name) | {member: WRONG}
        if not validator(name).is_valid(body):
            response = client.post(path, json=body)
            assert response.status_code == 400, (member, response.text)
            validator("AnthropicError" if "messages" in path else "Error").validate(response.json())


@pytest.mark.parametrize("name", [*PARSERS, "DetokenizeRequest"])
def test_an_unknown_member_is_refused_by_both(client, name) -> None:
    path = next(each.path for each in OPERATIONS if each.body == name)
    body = body_of(name) | {"no_such_member": 1}
    assert not validator(name).is_valid(body)
    assert client.post(path, json=body).status_code == 400


@pytest.mark.parametrize(("operation", "body"), EXAMPLES)
def test_an_example_is_valid_and_so_is_its_answer(client, operation, body) -> None:
    validator(operation.body).validate(body)
    check_answer(operation, client.post(operation.path, json=body))


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2, "logprobs": True, "return_token_ids": True, "service_tier": "default"},
        {"prompt_logprobs": 1, "echo": True, "stop": ["o"], "temperature": None},
        {"stream": True, "logprobs": True, "return_token_ids": True},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
def test_answers_with_details_are_valid(client, more) -> None:
    body = {"model": MODEL, "messages": [USER], **more}
    validator("ChatCompletionRequest").validate(body)
    check_answer(OPERATIONS[0], client.post(CHAT, json=body))


def test_calls_of_tools_are_valid(client, engine) -> None:
    engine.reply = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    called = 0
    for operation in (each for each in OPERATIONS if "tool" in each.examples):
        for stream in (False, True):
            response = client.post(operation.path, json=operation.examples["tool"] | {"stream": stream})
            check_answer(operation, response)
            called += "get_weather" in response.text
    assert called == 4


def test_what_is_kept_is_valid(client) -> None:
    """Reads and deletions of a stored response and of a session."""
    created = client.post("/v1/responses", json={"model": MODEL, "input": "hi"}).json()["id"]
    client.post(CHAT, json={"model": MODEL, "messages": [USER], "session_id": "s"})
    ids = {"/v1/responses/{id}": created, "/v1/responses/{id}/input_items": created, "/v1/sessions/{id}": "s"}
    kept = sorted((each for each in OPERATIONS if each.path in ids), key=lambda each: each.method, reverse=True)
    assert len(kept) == 5
    for operation in kept:
        check_answer(operation, client.request(operation.method, operation.path.replace("{id}", ids[operation.path])))


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/{id}", "/v1/limits"])
def test_reads_are_valid(client, path) -> None:
    operation = next(each for each in OPERATIONS if each.path == path)
    check_answer(operation, client.get(path.replace("{id}", MODEL)))


def test_embeddings_are_valid(app, client) -> None:
    operation = next(each for each in OPERATIONS if each.body == "EmbeddingRequest")
    for encoding in ({}, {"encoding_format": "base64"}):
        body = operation.examples["texts"] | encoding
        validator("EmbeddingRequest").validate(body)
        check_answer(operation, client.post(operation.path, json=body))


def test_it_is_served_to_anyone(app) -> None:
    with TestClient(app) as stranger:
        served = stranger.get("/openapi.json")
    assert served.status_code == 200
    assert served.json() == DOCUMENT
    assert served.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_is_one_and_is_used(schema) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[schema])
    assert f'"#/components/schemas/{schema}"'.encode() in orjson.dumps(DOCUMENT)
