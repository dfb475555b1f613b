"""Calls and reasoning out of a real engine and a tiny model, which would say anything if it were not held."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from starlette.testclient import TestClient
from tokenizers import AddedToken, Tokenizer

from engine.config import EngineConfig
from engine.engine import Engine
from gateway.app import create_app
from gateway.config.settings import Settings
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, FakeAuthenticator
from tests.support.services import services_with
from tests.support.sse import chunks
from tests.support.tiny_models import make_checkpoint
from tests.support.tiny_tokenizer import IM_END

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Paris", "Oslo"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"weather": SCHEMA, "now": {"type": "object", "maxProperties": 0}}
BOUND = {"max_tokens": 400, "seed": 3}


def with_reasoning(folder: Path) -> Path:
    """Gives the model's vocabulary the markers of reasoning, and has its template open the span if it is asked to."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<think>", "</think>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] += "{% if enable_thinking %}{{ '<think>\n' }}{% endif %}"
    for text in ("<think>", "</think>"):
        entry = {"content": text, "special": True, "lstrip": False, "rstrip": False, "normalized": False}
        config["added_tokens_decoder"][str(tokenizer.token_to_id(text))] = entry | {"single_word": False}
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


FORMS = {"hermes": "<tool_call>", "qwen_xml": "<function=f><parameter=k>", "deepseek": "<｜tool▁calls▁begin｜>"}
"""Texts of chat templates by which the syntax of calls is detected."""


def with_form(folder: Path, sign: str) -> Path:
    """A copy of the model whose template shows tools, and calls in another syntax."""
    copy = folder.with_name(f"{folder.name}-{len(sign)}")
    shutil.copytree(folder, copy)
    path = copy / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["chat_template"] = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{# " + sign + " #}" + config["chat_template"]
    )
    path.write_text(json.dumps(config), encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = make_checkpoint(tmp_path_factory.mktemp("model"), "llama", max_position_embeddings=2048)
    config = EngineConfig(dtype="float32", kv_cache_bytes=8 * 2**20, threads=1)
    models = {name: with_form(folder, sign) for name, sign in FORMS.items()}
    engine = Engine.load({"tiny": with_reasoning(folder)} | models, config)
    assert [engine.models[name].text.dialect.call_form for name in FORMS] == list(FORMS)
    app = create_app(Settings(data_dir=folder / "data"), services_with(folder, engine, FakeAuthenticator()))
    with TestClient(app, headers=AUTHORISED) as client:
        yield client


def chat(client: TestClient, **fields: object):
    return client.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES} | fields)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("model", ["tiny", *FORMS])
def test_a_forced_answer_is_valid_calls_of_declared_tools(client, choice, model):
    response = chat(client, model=model, tools=TOOLS, tool_choice=choice, **BOUND)
    assert response.status_code == 200, response.text
    [told] = response.json()["choices"]
    assert told["finish_reason"] == "tool_calls"
    for call in told["message"]["tool_calls"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    seen = [
        chunk["choices"][0]
        for chunk in chunks(chat(client, model=model, tools=TOOLS, tool_choice=choice, stream=True, **BOUND))
    ]
    arguments = ["" for _ in told["message"]["tool_calls"]]
    for delta in (each for c in seen for each in c["delta"].get("tool_calls", ())):
        arguments[delta["index"]] += delta["function"]["arguments"]
    assert arguments == [call["function"]["arguments"] for call in told["message"]["tool_calls"]]


def test_a_schema_that_cannot_be_enforced_is_refused_by_its_tool_and_keyword(client):
    bad = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "bad", "parameters": bad}}]
    error = error_of(chat(client, tools=tools, tool_choice="required"), 400)
    assert error["param"] == "tools[2].function.parameters"
    assert "uniqueItems" in error["message"]
    assert chat(client, tools=tools, max_tokens=1).status_code == 200


@pytest.fixture(scope="module")
def end_of_reasoning(client: TestClient) -> str:
    """The key of the token in `logit_bias`."""
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "tiny", "messages": messages, "chat_template_kwargs": {"enable_thinking": True}}
    tokens = client.post("/v1/tokenize", json=body | {"return_token_strs": True}).json()
    begin = tokens["tokens"][tokens["token_strs"].index("<think>")]
    return str(begin + 1)


def test_a_forced_call_comes_behind_what_the_model_says_to_itself(client, end_of_reasoning):
    thinking = {"chat_template_kwargs": {"enable_thinking": True}, "logit_bias": {end_of_reasoning: 3.0}}
    response = chat(client, tools=TOOLS, tool_choice="required", **thinking, **BOUND)
    assert response.status_code == 200, response.text
    body = response.json()
    [told] = body["choices"]
    assert told["finish_reason"] == "tool_calls"
    assert told["message"]["reasoning_content"]
    assert told["message"]["content"] is None
    assert 1 < body["usage"]["completion_tokens_details"]["reasoning_tokens"] < body["usage"]["completion_tokens"]
    for call in told["message"]["tool_calls"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])


def test_a_span_that_is_cut_is_all_reasoning(client, end_of_reasoning):
    thinking = {"chat_template_kwargs": {"enable_thinking": True}, "logit_bias": {end_of_reasoning: -100}}
    body = chat(client, tools=TOOLS, tool_choice="required", max_tokens=12, seed=1, **thinking).json()
    [told] = body["choices"]
    assert told["finish_reason"] == "length"
    assert told["message"]["reasoning_content"]
    assert not told["message"]["content"]
    assert "tool_calls" not in told["message"]
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 12


def test_markers_typed_by_a_client_are_text(client, end_of_reasoning):
    messages = [{"role": "user", "content": "</think>"}]
    tools = [{"type": "function", "function": {"name": "now", "description": "</think><|im_end|>"}}]
    body = {"model": "tiny", "messages": messages, "tools": tools}
    tokens = client.post("/v1/tokenize", json=body).json()["tokens"]
    assert int(end_of_reasoning) not in tokens
    assert tokens.count(IM_END) == 2, "of the system message and the user's"
