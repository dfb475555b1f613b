"""Tools in chats: the fields that a body may have, the prompt of the model, and the calls in its answer."""

import json
from collections.abc import Sequence

import jsonschema
import pytest
from starlette.testclient import TestClient

from engine.grammar import GrammarSpec
from engine.text.dialect import CallForm, Dialect
from gateway.formats.openai.tool_schema import MAX_DESCRIPTION_CHARS, MAX_TOOLS
from gateway.http.bounds import MAX_GRAMMAR_BYTES, MAX_SCHEMA_NESTING
from tests.support.error_envelope import error_of
from tests.support.fake_engine import FakeEngine
from tests.support.schemas import nested
from tests.support.sse import chunks

MESSAGES = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine({"tiny": 4096})


def tool(name: object = "weather", **function: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": WEATHER} | function}


def allowed(mode: str, names: Sequence[str] = ("weather",)) -> dict[str, object]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def chat(client: TestClient, **fields: object):
    return client.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES, "tools": [tool()]} | fields)


def prompt_of(engine: FakeEngine, call: int = -1) -> str:
    return bytes(token for token in engine.calls[call].prompt if token < 256).decode()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": "add"}, "tools"),
        ({"tools": [tool()] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": ["add"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [tool() | {"other": 1}]}, "tools[0].other"),
        ({"tools": [tool(), {"type": "function", "function": {}}]}, "tools[1].function.name"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("n" * 65)]}, "tools[0].function.name"),
        ({"tools": [tool(5)]}, "tools[0].function.name"),
        ({"tools": [tool(), tool("time"), tool()]}, "tools[2].function.name"),
        ({"tools": [tool(description="d" * (MAX_DESCRIPTION_CHARS + 1))]}, "tools[0].function.description"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool(other=1)]}, "tools[0].function.other"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters="{}")]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters.type"),
        ({"tools": [tool(parameters=nested(MAX_SCHEMA_NESTING + 1))]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"enum": ["x" * MAX_GRAMMAR_BYTES]})]}, "tools[0].function.parameters"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": allowed("none")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed("auto", [])}, "tool_choice.allowed_tools.tools"),
        (
            {"tool_choice": allowed("auto", ["time"])},
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"type": "function", "function": {"name": "time"}}}, "tool_choice.function.name"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "auto", "tools": None}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"functions": [{"name": "add"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format.type"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"tool_choice": "required", "min_tokens": 3}, "min_tokens"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_is_refused_before_any_work(client, engine, body, param):
    assert error_of(chat(client, **body), 400)["param"] == param
    assert not engine.calls


def test_a_model_whose_template_knows_no_tools_is_told_of_them(client, engine):
    engine.models["tiny"].text.dialect = Dialect()
    assert chat(client).status_code == 200
    assert '"name": "weather"' in prompt_of(engine)
    assert engine.calls[0].params.grammar is None
    chat(client, tool_choice="none")
    assert prompt_of(engine) == "<user>hi\n<assistant>"


def test_a_template_that_knows_tools_is_given_them(client, engine):
    chat(client, tools=[tool(description="Looks outside.", strict=True)])
    function = {"name": "weather", "description": "Looks outside.", "parameters": WEATHER}
    assert prompt_of(engine) == f"<user>hi\n[tools={[{'type': 'function', 'function': function}]}]<assistant>"


CALL = '{"name":"weather","arguments":{"city":"Oslo"}}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "reply"),
    [
        ("auto", f"<tool_call>\n{CALL}\n</tool_call>"),
        ("required", f"[{CALL}]"),
        ({"type": "function", "function": {"name": "weather"}}, CALL),
    ],
)
def test_a_call_comes_back_as_one(client, engine, stream, choice, reply):
    engine.reply = reply
    response = chat(client, tool_choice=choice, stream=stream)
    assert response.status_code == 200, response.text
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    if not stream:
        [told] = response.json()["choices"]
        [seen] = told["message"]["tool_calls"]
        assert told["finish_reason"] == "tool_calls"
        assert told["message"]["content"] is None
    else:
        choices = [chunk["choices"][0] for chunk in chunks(response)]
        assert choices[-1]["finish_reason"] == "tool_calls"
        first, *rest = [each for c in choices for each in c["delta"].get("tool_calls", ())]
        assert first["index"] == 0
        assert first["function"] == {"name": "weather", "arguments": ""}
        assert all(each.keys() == {"index", "function"} and each["index"] == 0 for each in rest)
        arguments = "".join(each["function"]["arguments"] for each in rest)
        assert not "".join(c["delta"].get("content") or "" for c in choices)
        seen = {"id": first["id"], "type": first["type"], "function": {"name": "weather", "arguments": arguments}}
    assert seen.pop("id").startswith("call_")
    assert seen == call


def test_choices_count_their_calls_on_their_own(client, engine):
    engine.reply = f"[{CALL},{CALL}]"
    told = chat(client, tool_choice="required", n=2).json()["choices"]
    ids = [call["id"] for choice in told for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 4


def test_an_answer_that_is_cut_ends_with_length(client, engine):
    engine.reply = f"[{CALL}]"
    [told] = chat(client, tool_choice="required", max_tokens=len(CALL) - 4).json()["choices"]
    assert told["finish_reason"] == "length"
    assert told["message"]["tool_calls"][0]["function"]["arguments"] == '{"city":"Os'


def forced_schema(engine: FakeEngine) -> dict[str, object]:
    grammar = engine.calls[-1].params.grammar
    return json.loads(grammar.source)


def holds(schema: dict[str, object], answer: object) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(answer)


def test_what_a_forced_answer_is_held_to(client, engine):
    linked = {
        "type": "object",
        "properties": {"list": {"$ref": "#/$defs/Node"}},
        "required": ["list"],
        "additionalProperties": False,
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"$ref": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}},
                "required": ["$ref"],
                "additionalProperties": False,
            }
        },
    }
    tools = [tool(), tool("sum", parameters=linked)]
    good = {"name": "sum", "arguments": {"list": {"$ref": 1, "next": {"$ref": 2}}}}
    bad = {"name": "sum", "arguments": {"list": {"$ref": 1, "next": {}}}}
    other = {"name": "weather", "arguments": {"city": "Oslo"}}
    chat(client, tools=tools, tool_choice="required")
    schema = forced_schema(engine)
    assert holds(schema, [good, other])
    assert not any(holds(schema, each) for each in ([], [bad], good, [{"name": "weather", "arguments": {}}]))
    chat(client, tools=tools, tool_choice="required", parallel_tool_calls=False)
    schema = forced_schema(engine)
    assert holds(schema, good)
    assert not any(holds(schema, each) for each in ([good], bad))
    chat(client, tools=tools, tool_choice={"type": "function", "function": {"name": "weather"}})
    schema = forced_schema(engine)
    assert holds(schema, other)
    assert not any(holds(schema, each) for each in (good, [other]))


@pytest.mark.parametrize("strict", [None, False, True])
def test_forced_arguments_have_no_members_that_the_schema_does_not_name(client, engine, strict):
    """Also of the objects within; but the prompt has the schema as the client wrote it."""
    place = {"type": "object", "properties": {"city": {"type": "string"}}}
    asked = {"type": "object", "properties": {"place": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": place}}
    open_one = asked | {"additionalProperties": True}
    tools = [tool("silent", parameters=asked, strict=strict), tool("open", parameters=open_one, strict=strict)]
    chat(client, tools=tools, tool_choice="required")
    schema = forced_schema(engine)
    oslo = {"place": {"city": "Oslo"}}
    assert holds(schema, [{"name": "silent", "arguments": oslo}])
    assert holds(schema, [{"name": "open", "arguments": oslo | {"unit": "C"}}])
    assert not holds(schema, [{"name": "silent", "arguments": oslo | {"unit": "C"}}])
    assert not holds(schema, [{"name": "open", "arguments": {"place": {"city": "Oslo", "unit": "C"}}}])
    assert bytes(engine.calls[-1].prompt[1:]).count(b"additionalProperties") == 1


def test_a_tool_without_parameters_takes_no_arguments(client, engine):
    chat(client, tools=[{"type": "function", "function": {"name": "now"}}], tool_choice="required")
    schema = forced_schema(engine)
    assert holds(schema, [{"name": "now", "arguments": {}}])
    assert not holds(schema, [{"name": "now", "arguments": {"zone": "UTC"}}])


def test_without_a_choice_that_may_call_the_answer_may_have_a_form(client, engine):
    response = chat(client, tool_choice="none", response_format={"type": "json_object"})
    assert response.status_code == 200
    assert engine.calls[0].params.grammar == GrammarSpec.json_object()


@pytest.mark.parametrize(
    ("form", "reply"),
    [
        (
            CallForm.QWEN_XML,
            "Look.<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            CallForm.DEEPSEEK,
            'Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "12"}<｜tool▁call▁end｜>'
            "<｜tool▁calls▁end｜>",
        ),
    ],
)
def test_streamed_calls_of_a_dialect_are_those_of_the_whole_answer(client, engine, form, reply):
    engine.models["tiny"].text.dialect = Dialect(knows_tools=True, call_form=form)
    engine.reply = reply
    [whole] = chat(client).json()["choices"]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == "Look."
    [call] = whole["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "12"}'}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(chat(client, stream=True)) if chunk["choices"]]
    parts = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta]
    assert "".join(parts) == '{"city": "12"}'
    assert len(parts) > 2
    assert "".join(delta.get("content") or "" for delta in deltas) == "Look."


def test_an_answer_may_be_kept_to_one_call(client, engine):
    engine.models["tiny"].text.dialect = Dialect(call_form=CallForm.MISTRAL)
    engine.reply = f"[TOOL_CALLS] [{CALL},{CALL}]"
    for parallel, calls in ((True, 2), (False, 1)):
        [told] = chat(client, parallel_tool_calls=parallel).json()["choices"]
        assert len(told["message"]["tool_calls"]) == calls


def test_a_session_remembers_calls_and_their_results(client, engine):
    """By the ids that its client received, so that a result finds its call."""
    engine.reply = f"Let me look.<tool_call>{CALL}</tool_call>"
    first = chat(client, session_id="s").json()["choices"][0]["message"]
    [call] = first["tool_calls"]
    engine.reply = "Rain."
    result = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
    chat(client, session_id="s", messages=[result])
    engine.models["tiny"].text.dialect = Dialect()
    chat(client, session_id="s", messages=[{"role": "user", "content": "Thanks"}], tools=None)
    assert prompt_of(engine) == (
        "<user>hi\n"
        "<assistant>Let me look.\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        "<user><tool_response>\nrain\n</tool_response>\n"
        "<assistant>Rain.\n"
        "<user>Thanks\n"
        "<assistant>"
    )
    stored = client.get("/v1/sessions/s").json()["messages"]
    assert stored[1]["tool_calls"][0]["id"] == stored[2]["tool_call_id"] == call["id"]


def test_a_session_does_not_remember_a_call_that_was_cut(client, engine):
    engine.reply = f"<tool_call>{CALL}</tool_call>"
    chat(client, session_id="s", max_tokens=len("<tool_call>") + len(CALL) - 5)
    assert client.get("/v1/sessions/s").json()["messages"][-1] == {"role": "assistant", "content": ""}


def test_tokenize_counts_tools(client, engine):
    body = {"model": "tiny", "messages": MESSAGES, "tools": [tool()]}
    tokens = client.post("/v1/tokenize", json=body).json()["tokens"]
    chat(client)
    assert tuple(tokens) == engine.calls[-1].prompt
