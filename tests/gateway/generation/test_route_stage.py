"""The input of routing, for a request."""

from dataclasses import replace
from typing import Any

import pytest

from engine.grammar.spec import GrammarSpec
from gateway.formats.openai.chat_schema import parse_chat
from gateway.formats.openai.completion_schema import parse_completion
from gateway.generation.route_stage import question_of, token_param
from gateway.http.fields import Fields
from gateway.routing.question import Question

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "3 + 3?"}]},
]
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def chat(**fields: Any) -> Question:
    return question_of(parse_chat(Fields({"model": "auto", "messages": CONVERSATION, **fields}, "")))


def test_a_conversation_is_what_its_users_said() -> None:
    assert chat(max_tokens=7) == Question(
        text="What is 2 + 2?\nAnd\n3 + 3?", turns=3, system_chars=len("Be brief."), max_tokens=7
    )
    assert chat().max_tokens is None


def test_tools_that_were_used_are_asked_for() -> None:
    used = [
        *CONVERSATION,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "6", "tool_call_id": "c"},
    ]
    assert chat(messages=used).has_tools
    assert not chat().has_tools


def test_an_answer_of_a_given_form_is_asked_for_by_a_schema() -> None:
    request = parse_chat(Fields({"model": "auto", "messages": CONVERSATION}, ""))
    shaped = replace(request.params, grammar=GrammarSpec.choice(["yes", "no"]))
    assert question_of(replace(request, params=shaped)).has_schema
    assert not question_of(request).has_schema


def test_prompts_are_questions_too() -> None:
    request = parse_completion(Fields({"model": "auto", "prompt": ["one", "two"], "max_tokens": 3}, ""))
    assert question_of(request) == Question(text="one\ntwo", turns=2, max_tokens=3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "one"}, None),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": "one", "logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt": "one", "stop_token_ids": [5]}, "stop_token_ids"),
    ],
)
def test_the_field_that_has_token_ids_is_named(fields: dict[str, Any], param: str | None) -> None:
    assert token_param(parse_completion(Fields({"model": "auto", **fields}, ""))) == param
