"""The bodies of messages and of count_tokens: what each member means, and what is refused."""

import pytest
from anthropic.types import MessageCountTokensParams as CountParams
from anthropic.types.message_create_params import MessageCreateParamsBase

from engine.errors import InvalidParameter
from engine.grammar import GrammarSpec
from gateway.formats.anthropic.schema import parse_count, parse_messages
from gateway.http.errors import APIError
from gateway.http.fields import Fields

BODY = {"model": "tiny", "max_tokens": 2000, "messages": [{"role": "user", "content": "hi"}]}
COUNTED = {name: BODY[name] for name in ("model", "messages")}
NULLS = ("system", "stop_sequences", "temperature", "top_p", "top_k", "stream", "tools", "tool_choice", "metadata")
NULLS += (
    "thinking",
    "service_tier",
    "container",
    "mcp_servers",
    "context_management",
    "output_config",
    "cache_control",
)


def parsed(**fields):
    return parse_messages(Fields(BODY | fields))


def test_a_plain_request():
    asked = parsed(**dict.fromkeys(NULLS))
    assert asked == parsed()
    request = asked.request
    assert (request.model, request.prompt_param, request.stream) == ("tiny", "messages", False)
    assert (request.params.temperature, request.params.top_p, request.params.top_k) == (1.0, 1.0, 0)
    assert (request.params.stop, request.tools, request.service_tier) == ((), None, None)


def test_max_tokens_bounds_an_answer_as_far_as_the_window_allows():
    asked = parsed()
    assert asked.max_tokens == 2000
    assert (asked.request.params.max_tokens, asked.request.default_max_tokens) == (None, 2000)


def test_sampling():
    stops = ["a", "b"]
    request = parsed(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=stops, stream=True).request
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.stop) == (0.5, 0.9, 5, ("a", "b"))
    assert request.stream


@pytest.mark.parametrize(
    ("thinking", "variables", "shown"),
    [
        (None, {}, True),
        ({"type": "adaptive"}, {}, True),
        ({"type": "adaptive", "display": "omitted"}, {}, False),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}, True),
        ({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}, {"enable_thinking": True}, False),
        ({"type": "disabled"}, {"enable_thinking": False}, True),
    ],
)
def test_thinking_is_a_word_to_the_template(thinking, variables, shown):
    asked = parsed(thinking=thinking)
    assert asked.request.prompts[0].variables == variables
    assert asked.shows_thinking is shown


def test_tiers():
    assert parsed(service_tier="auto").request.service_tier == "auto"
    assert parsed(service_tier="standard_only").request.service_tier == "default"


def test_what_asks_for_nothing_is_taken():
    neutral = {"mcp_servers": [], "context_management": {"edits": []}, "speed": "standard"}
    hints = {"metadata": {"user_id": "u"}, "cache_control": {"type": "ephemeral"}, "output_config": {"effort": "low"}}
    assert parsed(**neutral, **hints) == parsed()
    keeps_all = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert parsed(context_management=keeps_all) == parsed()


def test_an_answer_of_a_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "schema": schema}
    grammar = parsed(output_config={"format": form}).request.params.grammar
    assert grammar == GrammarSpec.json_schema(schema | {"additionalProperties": False}, "output_config.format.schema")


def test_a_count_has_the_prompt_of_the_message():
    shaping = {
        "system": "s",
        "tools": [{"name": "add", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    counted, asked = parse_count(Fields(COUNTED | shaping)), parsed(**shaping).request
    assert (counted.prompts, counted.tools) == (asked.prompts, asked.tools)


@pytest.mark.parametrize("name", ["max_tokens", "stream", "temperature", "stop_sequences", "service_tier", "metadata"])
def test_a_count_takes_nothing_of_an_answers(name):
    with pytest.raises(APIError) as refusal:
        parse_count(Fields(COUNTED | {name: 1}))
    assert refusal.value.param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a", 5]}, "stop_sequences[1]"),
        ({"stream": "true"}, "stream"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"metadata": {"a": "b"}}, "metadata.a"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
        ({"output_config": {"effort": "some"}}, "output_config.effort"),
        ({"output_config": {"format": "json"}}, "output_config.format"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 5}}}, "output_config.format.schema"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "context_management"),
        ({"speed": "fast"}, "speed"),
        ({"seed": 1}, "seed"),
        ({"n": 2}, "n"),
    ],
)
def test_refusals_name_the_field(fields, param):
    with pytest.raises(APIError) as refusal:
        parsed(**fields)
    assert (refusal.value.status, refusal.value.param) == (400, param)


@pytest.mark.parametrize(
    ("body", "parse", "params"), [(BODY, parse_messages, MessageCreateParamsBase), (COUNTED, parse_count, CountParams)]
)
def test_no_member_that_anthropics_client_knows_is_unknown(body, parse, params):
    """Each is taken or refused by its name."""
    for name in params.__annotations__:
        with pytest.raises(APIError) as refusal:
            parse(Fields(body | {name: [1]}))
        assert refusal.value.param.startswith(name)
        assert refusal.value.code != "unknown_parameter"


def test_the_engines_own_bounds():
    with pytest.raises(InvalidParameter) as refusal:
        parsed(top_p=0)
    assert refusal.value.param == "top_p"


def test_thinking_does_not_go_with_an_answer_that_has_begun():
    begun = [*BODY["messages"], {"role": "assistant", "content": "The"}]
    with pytest.raises(APIError) as refusal:
        parsed(messages=begun, thinking={"type": "enabled", "budget_tokens": 1024})
    assert refusal.value.param == "messages"
