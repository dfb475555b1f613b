"""Valid requests: items as the model is shown them. Every refused parameter is named in its error."""

import pytest

from gateway.formats.openai_responses.conversation import conversation_of, unshown_chars
from gateway.formats.openai_responses.items import take_items
from gateway.formats.openai_responses.turn import MAX_UNSHOWN_CHARS
from gateway.http.fields import Fields
from tests.support.error_envelope import error_of
from tests.support.responses_bodies import PATH, body, shown

CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "3"}
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
NAMESPACE = {"type": "namespace", "name": "math", "description": "Sums.", "tools": [TOOL | {"description": "Adds."}]}


def said(role: str, *texts: str, kind: str = "input_text") -> dict:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def messages(*items: object, instructions: str | None = None) -> list[dict]:
    return list(conversation_of(instructions, take_items(Fields({"input": list(items)}))))


def test_messages_of_every_form(ask, engine):
    ask([{"role": "user", "content": "a"}, said("assistant", "b", kind="output_text"), said("user", "c", "d")])
    assert shown(engine) == "<user>a\n<assistant>b\n<user>c\nd\n"


def test_instructions_come_first_in_one_message(ask, engine):
    ask([said("developer", "x"), said("system", "y"), said("user", "z")], instructions="be brief")
    assert shown(engine) == "<system>be brief\n\nx\n\ny\n<user>z\n"


def test_calls_join_the_message_before_them():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    assert messages(CALL, RESULT) == [{"role": "assistant", "content": None, "tool_calls": [call]}, answer]
    other = CALL | {"call_id": "c2"}
    assert messages(said("assistant", "b", kind="output_text"), CALL, other) == [
        {"role": "assistant", "content": "b", "tool_calls": [call, call | {"id": "c2"}]}
    ]
    assert messages(RESULT | {"output": [{"type": "input_text", "text": "3"}]}) == [answer]


def test_a_call_that_was_cut_off_was_never_made():
    assert messages(CALL | {"arguments": '{"a', "status": "incomplete"}, said("user", "z")) == [
        {"role": "user", "content": "z"}
    ]


def test_reasoning_belongs_to_what_follows_it():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    [message] = messages(thought, said("assistant", "b", kind="output_text"))
    assert message == {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    [message] = messages(thought, CALL)
    assert message["reasoning_content"] == "hm"
    assert messages(thought, said("user", "z")) == [{"role": "user", "content": "z"}]
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "xyz"}
    assert messages(encrypted, said("user", "z")) == [{"role": "user", "content": "z"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"access_programs": {}}, "access_programs"),
        ({"background": True}, "background"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"image": {}}, "image"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"prompt_cache_options": {}}, "prompt_cache_options"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"include": ["message.output_text.logprobs"], "tools": [TOOL]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [said("user", "x", kind="input_image")]}, "input[0].content[0].type"),
        ({"input": [CALL | {"caller": {"type": "program"}}]}, "input[0].caller"),
        ({"tools": [NAMESPACE | {"tools": [{"type": "custom", "name": "x"}]}]}, "tools[0].tools[0].type"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client, engine, fields, param):
    error = error_of(client.post(PATH, json=body() | fields), 400)
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert engine.calls == []


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": [{}]}, "input[0].id", "missing_required_parameter"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [CALL | {"arguments": "[]"}]}, "input[0].arguments", "invalid_value"),
        ({"input": [CALL | {"status": "odd"}]}, "input[0].status", "invalid_value"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c"}]},
            "input[0].output",
            "missing_required_parameter",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k", "string_above_max_length"),
        ({"metadata": {"k" * 65: "x"}}, "metadata." + "k" * 64, "invalid_value"),
        ({"user": "x" * 513}, "user", "string_above_max_length"),
        ({"safety_identifier": "x" * 65}, "safety_identifier", "string_above_max_length"),
        ({"prompt_cache_key": "x" * 65}, "prompt_cache_key", "string_above_max_length"),
        ({"input": [CALL | {"call_id": "c" * 257}]}, "input[0].call_id", "string_above_max_length"),
        ({"input": [CALL | {"name": "n" * 129}]}, "input[0].name", "string_above_max_length"),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_type"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing_required_parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [TOOL]}, "tool_choice.name", "invalid_value"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "invalid_value"),
        ({"tools": [NAMESPACE | {"name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [NAMESPACE, NAMESPACE]}, "tools[1].tools[0].name", "invalid_value"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"input": "x" * 600}, "input", "context_length_exceeded"),
        ({"input": "TEMPLATE-REFUSES"}, "input", "invalid_value"),
        ({"max_output_tokens": 5000}, "max_output_tokens", "context_length_exceeded"),
    ],
)
def test_what_is_wrong_is_named(client, engine, fields, param, code):
    error = error_of(client.post(PATH, json={k: v for k, v in (body() | fields).items() if v is not None}), 400)
    assert (error["param"], error["code"]) == (param, code)
    assert engine.calls == []


def test_a_namespace_is_part_of_its_functions_names(ask, engine):
    engine.reply = '<tool_call>\n{"name": "math__add", "arguments": {"a": 1}}\n</tool_call>'
    response = ask(tools=[TOOL, NAMESPACE])
    prompt = bytes(engine.calls[-1].prompt[1:]).decode()
    assert "'name': 'math__add', 'description': 'Sums.\\nAdds.'" in prompt
    [call] = response["output"]
    assert (call["namespace"], call["name"]) == ("math", "add")
    assert [tool["name"] for tool in response["tools"]] == ["add", "math"]
    [message] = messages(CALL | {"namespace": "math"})
    assert message["tool_calls"][0]["function"]["name"] == "math__add"


def test_sessions_are_chats(client, engine):
    refused = error_of(client.post(PATH, json=body(), headers={"x-turnpike-session": "a"}), 400)
    assert (refused["param"], refused["code"]) == ("x-turnpike-session", "unsupported_parameter")


LONG = "x" * (MAX_UNSHOWN_CHARS + 1)
MANY_TOOLS = [TOOL | {"name": f"f{i}", "description": LONG[:4000]} for i in range(40)]
QUESTION = {"type": "message", "role": "user", "content": "Where?"}
ANSWER = {"type": "message", "role": "assistant", "content": "Here."}


def reasoning(content: str = "", summary: str = "") -> dict:
    return {
        "type": "reasoning",
        "content": [{"type": "reasoning_text", "text": content}] if content else [],
        "summary": [{"type": "summary_text", "text": summary}] if summary else [],
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [reasoning(content="So.", summary=LONG), ANSWER, QUESTION]},
        {"input": [reasoning(content=LONG), QUESTION]},
        {"input": [QUESTION, reasoning(summary=LONG)]},
        {"input": [*([reasoning(content=LONG[:14_000]), QUESTION] * 10)]},
        {"input": [CALL | {"status": "incomplete", "arguments": LONG}, QUESTION]},
        {"input": "Where?", "tools": MANY_TOOLS, "tool_choice": "none"},
    ],
)
def test_what_no_model_sees_is_stored_to_a_bound(client, engine, fields):
    """It costs no tokens, so nothing else bounds what of it a client has us keep."""
    error = error_of(client.post(PATH, json=body() | fields), 400)
    assert (error["param"], error["code"]) == ("input", "string_above_max_length")
    assert engine.calls == []
    assert client.post(PATH, json=body(store=False) | fields).status_code == 200


def test_all_that_reaches_the_prompt_counts_as_shown():
    items = [
        *(reasoning(content="a" * 100), reasoning(summary="b" * 100), ANSWER, QUESTION),
        *(reasoning(content="c" * 100), CALL | {"status": "completed"}, QUESTION),
    ]
    assert unshown_chars(items) == 0
