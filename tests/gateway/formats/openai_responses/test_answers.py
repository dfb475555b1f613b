"""The form of a response, whole and streamed."""

import openai.types.responses as sdk
import pytest

from tests.support import sse
from tests.support.error_envelope import error_of
from tests.support.responses_bodies import PATH, body, shown
from tests.support.usage_events import events_of as usage_events_of

WHOLE = {
    "background": False,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": "tiny",
    "object": "response",
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": None,
    "status": "completed",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def test_a_whole_response(ask, engine):
    response = ask("Where?")
    assert shown(engine) == "<user>Where?\n"
    assert {name: value for name, value in response.items() if name in WHOLE} == WHOLE
    assert response["id"].startswith("resp_")
    assert response["created_at"] <= response["completed_at"]
    [message] = response["output"]
    assert message["id"].startswith("msg_")
    text = {"type": "output_text", "text": "Hello, world!", "annotations": [], "logprobs": []}
    assert message == {
        "id": message["id"], "type": "message", "role": "assistant", "status": "completed", "content": [text]
    }  # fmt: skip
    assert response["usage"] == {
        "input_tokens": 25,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 13,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 38,
    }
    sdk.Response.model_validate(response)


def test_what_was_asked_is_said_again(ask):
    stated = {
        "instructions": "be brief",
        "max_output_tokens": 20,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "default",
        "store": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "user": "u",
        "text": {"format": {"type": "json_object"}, "verbosity": "medium"},
    }
    response = ask(**stated)
    assert {name: response[name] for name in stated} == stated
    assert response["tools"] == []


def test_parameters_reach_the_engine(ask, engine):
    ask(max_output_tokens=7, temperature=0.25, top_p=0.5)
    params = engine.calls[-1].params
    assert (params.max_tokens, params.temperature, params.top_p, params.n) == (7, 0.25, 0.5, 1)


def test_an_answer_that_is_cut_short_is_incomplete(ask, watch):
    response = ask(max_output_tokens=5)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["completed_at"] is None
    [message] = response["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "Hello")
    last = watch(max_output_tokens=5)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_the_events_of_a_stream(watch, engine):
    engine.reply = "abc"
    events = watch()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert (last["status"], last["usage"]["output_tokens"]) == ("completed", 3)
    assert events[9]["item"] == last["output"][0]
    assert events[2]["item"] | {"status": "completed", "content": last["output"][0]["content"]} == events[9]["item"]
    assert {event["item_id"] for event in events[3:9]} == {last["output"][0]["id"]}


def test_streamed_and_whole_are_the_same(ask, watch):
    varying = ("id", "created_at", "completed_at", "output", "usage")
    whole, streamed = ask(metadata={"a": "b"}), watch(metadata={"a": "b"})[-1]["response"]
    assert {k: v for k, v in whole.items() if k not in varying} == {
        k: v for k, v in streamed.items() if k not in varying
    }
    assert whole["output"][0]["content"] == streamed["output"][0]["content"]
    assert whole["usage"] == streamed["usage"]


@pytest.mark.parametrize("reply", ["Hello", "Gr\N{LATIN SMALL LETTER U WITH DIAERESIS}\N{PINEAPPLE}e"])
def test_log_probabilities_go_with_the_text(ask, watch, engine, reply):
    engine.reply = reply
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [part] = ask(**asked)["output"][0]["content"]
    assert len(part["logprobs"]) == len(reply.encode())
    assert [len(each["top_logprobs"]) for each in part["logprobs"]] == [2] * len(part["logprobs"])
    events = watch(**asked)
    [added] = [event for event in events if event["type"] == "response.content_part.added"]
    assert added["part"]["logprobs"] == []
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == part["logprobs"]
    assert events[-1]["response"]["output"][0]["content"] == [part]


def test_without_being_asked_for_there_are_none(ask):
    assert ask(include=["reasoning.encrypted_content"])["output"][0]["content"][0]["logprobs"] == []


def test_a_failure_half_way_is_told_and_not_kept(client, watch, engine):
    engine.fail_at = 2
    *_, told, last = watch()
    assert (told["type"], told["code"]) == ("error", "engine_error")
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "server_error"
    assert last["sequence_number"] == told["sequence_number"] + 1
    error_of(client.get(f"{PATH}/{last['response']['id']}"), 404)


def test_a_failure_before_the_first_token_has_its_status(client, engine):
    engine.fail_at = 0
    for stream in (False, True):
        error_of(client.post(PATH, json=body(stream=stream)), 500)


def test_every_event_is_one_of_the_clients(watch):
    """Each parses strictly as the class of its name."""
    known = [each for each in vars(sdk).values() if isinstance(each, type) and each.__name__.endswith("Event")]
    classes = {each.model_fields["type"].annotation.__args__[0]: each for each in known}
    for event in watch(max_output_tokens=3):
        classes[event["type"]].model_validate(event)


def test_no_done_marker_ends_a_stream(client):
    text = client.post(PATH, json=body(stream=True)).text
    assert sse.events(text)[-1]["type"] == "response.completed"


def test_grammars_are_asked_for_by_text_format(ask, engine):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    given = {"type": "json_schema", "name": "n", "schema": schema, "strict": True, "description": "d"}
    assert ask(text={"format": given})["text"]["format"] == given
    grammar = engine.calls[-1].params.grammar
    assert grammar.param == "text.format.schema"
    ask(text={"format": {"type": "text"}})
    assert engine.calls[-1].params.grammar is None


def test_effort_is_for_a_template_that_reads_it(ask, engine, client):
    asked = {"reasoning": {"effort": "low", "summary": "auto"}}
    error = error_of(client.post(PATH, json=body(**asked)), 400)
    assert (error["param"], error["code"]) == ("reasoning.effort", "unsupported_parameter")
    engine.models["tiny"].text.variables.add("reasoning_effort")
    assert ask(**asked)["reasoning"] == {"effort": "low", "summary": None}
    assert "[reasoning_effort=low]" in bytes(engine.calls[-1].prompt[1:]).decode()


def test_it_is_billed_and_journaled_once(client, ask, watch, journal):
    ids = [ask()["id"], watch()[-1]["response"]["id"]]
    assert [event.request_id for event in usage_events_of(journal)] == ids
