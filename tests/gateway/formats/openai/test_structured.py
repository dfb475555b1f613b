"""Structured outputs over HTTP: what each way of asking means, what is refused, and what the engine makes of it."""

import json
from collections.abc import Iterator

import jsonschema
import pytest
from starlette.testclient import TestClient

from engine.grammar import GrammarSpec
from gateway.http.bounds import MAX_GRAMMAR_BYTES, MAX_GUIDED_CHOICES, MAX_REGEX_CHARS, MAX_SCHEMA_NESTING
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED
from tests.support.schemas import BOMB, nested
from tests.support.sse import chunks
from tests.support.tiny_app import tiny_app

MESSAGES = [{"role": "user", "content": "hi"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def wrapped(**fields: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n"} | fields}}


SILENT = {"type": "object", "properties": {"a": {"type": "integer"}}}
OPEN = SILENT | {"additionalProperties": True}


def chat(client: TestClient, **fields: object):
    return client.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES} | fields)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None}, None),
        ({"response_format": {"type": "json_object"}}, GrammarSpec.json_object()),
        (wrapped(schema=PERSON), GrammarSpec.json_schema(PERSON)),
        (wrapped(schema=PERSON, strict=False, description="d"), GrammarSpec.json_schema(PERSON)),
        (wrapped(schema=SILENT), GrammarSpec.json_schema(SILENT | {"additionalProperties": False})),
        (wrapped(schema=OPEN, strict=True), GrammarSpec.json_schema(OPEN)),
        ({"guided_json": SILENT}, GrammarSpec.json_schema(SILENT | {"additionalProperties": False})),
        ({"guided_json": PERSON}, GrammarSpec.json_schema(PERSON)),
        ({"guided_json": json.dumps(PERSON)}, GrammarSpec.json_schema(PERSON)),
        ({"guided_json": True}, GrammarSpec.json_schema(True)),
        ({"guided_json": nested(MAX_SCHEMA_NESTING)}, GrammarSpec.json_schema(nested(MAX_SCHEMA_NESTING))),
        ({"guided_regex": "a+"}, GrammarSpec.regex("a+")),
        ({"guided_choice": ["a", "b"]}, GrammarSpec.choice(["a", "b"])),
        ({"guided_grammar": 'root ::= "a"'}, GrammarSpec.ebnf('root ::= "a"')),
        ({"structured_outputs": {"json": PERSON, "backend": None}}, GrammarSpec.json_schema(PERSON)),
        ({"structured_outputs": {"json_object": True}}, GrammarSpec.json_object()),
        ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": True}}, GrammarSpec.regex("a+")),
        ({"structured_outputs": {"choice": ["a"]}}, GrammarSpec.choice(["a"])),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, GrammarSpec.ebnf('start: "a"')),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, GrammarSpec.regex("a")),
    ],
)
def test_what_each_way_of_asking_means(client, engine, body, expected):
    response = chat(client, **body)
    assert response.status_code == 200, response.text
    assert engine.calls[0].params.grammar == expected


def test_completions_ask_in_the_same_ways(client, engine):
    body = {"model": "tiny", "prompt": "a", "response_format": {"type": "json_object"}}
    assert client.post("/v1/completions", json=body).status_code == 200
    assert engine.calls[0].params.grammar == GrammarSpec.json_object()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "n"}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (wrapped(), "response_format.json_schema.schema"),
        (wrapped(schema="{"), "response_format.json_schema.schema"),
        (wrapped(schema=[]), "response_format.json_schema.schema"),
        (wrapped(schema={}, name="a b"), "response_format.json_schema.name"),
        (wrapped(schema={}, strict="yes"), "response_format.json_schema.strict"),
        (wrapped(schema={}, description="d" * 5000), "response_format.json_schema.description"),
        (wrapped(schema={}, other=1), "response_format.json_schema.other"),
        ({"guided_json": "not JSON"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": nested(MAX_SCHEMA_NESTING + 1)}, "guided_json"),
        ({"guided_json": {"enum": ["x" * MAX_GRAMMAR_BYTES]}}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": "a" * (MAX_REGEX_CHARS + 1)}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 5]}, "guided_choice[1]"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
        ({"guided_choice": ["a"] * (MAX_GUIDED_CHOICES + 1)}, "guided_choice"),
        ({"guided_choice": ["a" * MAX_GRAMMAR_BYTES, "b"]}, "guided_choice"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"guided_grammar": "a" * (MAX_GRAMMAR_BYTES + 1)}, "guided_grammar"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
        ),
        ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_is_refused_before_any_work(client, engine, body, param):
    assert error_of(chat(client, **body), 400)["param"] == param
    assert not engine.calls


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(tiny_app(tmp_path_factory.mktemp("model")), headers=AUTHORISED) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_what_its_schema_says(served, stream):
    body = wrapped(schema=PERSON, strict=True) | {"max_tokens": 100, "seed": 1}
    response = chat(served, stream=stream, **body)
    assert response.status_code == 200, response.text
    if stream:
        choices = [chunk["choices"][0] for chunk in chunks(response)]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
    else:
        choices = response.json()["choices"]
        text = choices[0]["message"]["content"]
    assert choices[-1]["finish_reason"] == "stop"
    jsonschema.validate(json.loads(text), PERSON)
    assert " " not in text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param", "named"),
    [
        (wrapped(schema={"not": {}}), "response_format.json_schema.schema", '"not"'),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", '"uniqueItems"'),
        ({"guided_json": {"if": {}, "then": {}}}, "guided_json", '"if"'),
        ({"guided_json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "guided_json", '"oneOf"'),
        ({"guided_json": {"type": "string", "format": "colour"}}, "guided_json", '"format": colour'),
        ({"guided_json": {"x-guidance": {"lenient": True}, "not": {}}}, "guided_json", '"x-guidance"'),
        ({"guided_json": {"$ref": "#"}}, "guided_json", "no text"),
        ({"guided_json": False}, "guided_json", "Unsatisfiable"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
        ({"guided_regex": r"(a)\1"}, "guided_regex", "backreferences"),
        ({"guided_grammar": "start: c"}, "guided_grammar", '"c"'),
        ({"guided_grammar": "root ::= root"}, "guided_grammar", "no text"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(served, stream, body, param, named):
    error = error_of(chat(served, stream=stream, **body), 400)
    assert error["param"] == param
    assert named in error["message"]


def test_a_bomb_is_refused_in_time_and_leaves_the_server_answering(served):
    error = error_of(chat(served, guided_json=json.loads(BOMB.source)), 400)
    assert (error["param"], error["code"]) == ("guided_json", "invalid_value")
    assert served.get("/readyz").status_code == 200
    answer = chat(served, guided_choice=["yes", "no"]).json()
    assert answer["choices"][0]["message"]["content"] in ("yes", "no")
