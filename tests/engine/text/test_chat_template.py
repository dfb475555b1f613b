import datetime
from typing import Any

import pytest

from engine.text.chat_template import ChatTemplate, ChatTemplateError

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = USER, **variables: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages, **variables)


def test_variables() -> None:
    source = (
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ add_generation_prompt }}{{ mood }}{{ pad_token }}"
    )
    assert render(source, mood="!") == "<s>hi</s>True!"
    assert render(source, add_generation_prompt=False) == "<s>hi</s>False"


def test_a_caller_cannot_shadow_special_tokens() -> None:
    assert render("{{ bos_token }}", bos_token="<|im_start|>") == "<s>"


def test_what_a_template_reads() -> None:
    template = ChatTemplate("{% set a = 1 %}{{ a }}{% if effort is defined %}{{ effort }}{% endif %}", {})
    assert template.variables == {"effort"}
    assert "tools" in ChatTemplate("", {}, tool_source="{{ tools }}").variables


def test_blocks_are_trimmed_as_transformers_does() -> None:
    assert render("{% if true %}\n  {% for m in messages %}\n{{ m.content }}\n  {% endfor %}\n{% endif %}") == "hi\n"


def test_loop_controls_and_generation_tag() -> None:
    stop = "{% if i == 2 %}{% break %}{% endif %}"
    source = f"{{% for i in range(9) %}}{stop}{{% generation %}}{{{{ i }}}}{{% endgeneration %}}{{% endfor %}}"
    assert render(source) == "01"


def test_tojson_is_plain_json() -> None:
    value = {"b": "<é&'\">", "a": [1, None, True]}
    assert render("{{ v | tojson }}", v=value) == '{"b": "<é&\'\\">", "a": [1, null, true]}'
    assert render("{{ v | tojson(indent=2, sort_keys=true) }}", v={"b": 1, "a": 2}) == '{\n  "a": 2,\n  "b": 1\n}'


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


def test_tools_choose_the_template_that_is_for_them() -> None:
    template = ChatTemplate("plain", {}, tool_source="{{ tools | length }} tools")
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[]) == "plain"
    assert template.render(USER, tools=[{"type": "function"}]) == "1 tools"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        ([{"type": "input_text", "text": "one"}, "two"], "one\ntwo"),
        ([], ""),
        (None, ""),
    ],
)
def test_content_becomes_a_string(content: Any, shown: str) -> None:
    assert render("[{{ messages[0].content + '' }}]", [{"role": "user", "content": content}]) == f"[{shown}]"


def test_missing_content_is_empty() -> None:
    assert render("[{{ messages[0].content + '' }}]", [{"role": "assistant", "tool_calls": []}]) == "[]"


def test_content_becomes_parts_where_the_template_needs_them() -> None:
    part = "{% if part.type == 'text' %}<{{ part.text }}>{% endif %}"
    source = "{% for m in messages %}{% for part in m.content %}" + part + "{% endfor %}{% endfor %}"
    assert render(source) == "<hi>"
    assert render(source, [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]) == "<a><b>"
    assert render(source, [{"role": "user", "content": None}]) == ""


def test_a_part_that_is_no_text_is_refused() -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(ChatTemplateError, match="image_url"):
        render("{{ messages[0].content }}", image)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"x": [1.5, "é"]}', '{"x": [1.5, "é"]}'),
        ("", "{}"),
        ({"x": 1}, '{"x": 1}'),
        ("not json", '"not json"'),
        ("[1]", '"[1]"'),
        ("[" * 50_000, '"' + "[" * 50_000 + '"'),
    ],
)
def test_arguments_of_tool_calls_are_written_as_json_once(arguments: Any, shown: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", messages) == shown
    assert call["function"]["arguments"] is arguments


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("f.name + f.arguments", 'f{"x": "é"}'),  # as in DeepSeek's templates
        ("f.name ~ f.arguments", 'f{"x": "é"}'),
        ("f.name + (f.arguments | tojson)", 'f{"x": "é"}'),
        ("f.arguments.x", "é"),
        ("f.name", "f"),
    ],
)
@pytest.mark.parametrize("arguments", [{"x": "é"}, '{"x": "é"}'])
def test_a_template_gets_the_arguments_of_calls_in_the_form_that_it_reads(
    written: str, expected: str, arguments: Any
) -> None:
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set f = c.function %}{{ " + written + " }}"
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    assert render(source + "{% endfor %}{% endfor %}", messages) == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content }}", "no element 5"),
        ("{{ undefined_thing.x }}", "undefined_thing"),
        ("{{ 1 / 0 }}", "zero"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update({}) }}", "unsafe"),
        ("{% include 'x' %}", "loader"),
        ("{{ {1, 2} | tojson }}", "expected"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
    ],
)
def test_failures_are_typed(source: str, reason: str) -> None:
    with pytest.raises(ChatTemplateError, match=reason):
        render(source)


@pytest.mark.parametrize("source", ["{% for %}", "{{ 1 }", "{% for a in [1] %}" * 25 + "{% endfor %}" * 25])
def test_what_is_no_template(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="not a template"):
        ChatTemplate(source, {})


def test_a_failing_probe_leaves_a_template_usable() -> None:
    source = "{% if messages | length < 2 %}{{ raise_exception('too few') }}{% endif %}{{ messages[1].content }}"
    assert render(source, [*USER, {"role": "assistant", "content": "there"}]) == "there"


@pytest.mark.parametrize("message", ["hi", None, 7])
def test_a_message_that_is_no_object_is_refused(message: Any) -> None:
    with pytest.raises(ChatTemplateError, match="a message is an object"):
        render("{{ messages[0] }}", [message])


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert render("{{ messages[0].content }}", messages) == "a"
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
