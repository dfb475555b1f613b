"""Any pieces of speech, in any portions: what a stream's events add up to is the whole answer."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import openai
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from engine.request import FinishReason, SamplingParams, TextDelta, Usage
from gateway.formats.openai_responses.formatter import ResponsesFormatter
from gateway.formats.openai_responses.schema import parse_response
from gateway.generation.response_format import ResponseMeta
from gateway.generation.usage import UsageTotal
from gateway.http.fields import Fields
from gateway.speech.output_parser import ParsedDelta
from gateway.speech.pieces import CallArguments, CallBegun, Piece, Reasoning, Text
from tests.support import sse
from tests.support.fake_model import FakeTokenizer

EVENT = TypeAdapter(ResponseStreamEvent)
META = ResponseMeta("resp_" + "0" * 32, "tiny", created=int(datetime.now(UTC).timestamp()))
TOOL = {"type": "function", "name": "look_up"}
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def new_formatter() -> ResponsesFormatter:
    tools = [
        {"type": "function", "name": "add"},
        {"type": "namespace", "name": "web", "description": "d", "tools": [TOOL]},
    ]
    _, stated = parse_response(Fields({"model": "tiny", "input": "hi", "tools": tools}))
    return ResponsesFormatter(META, stated, FakeTokenizer(), SamplingParams())


def usage() -> UsageTotal:
    return UsageTotal([3], 1)


def output(pieces: Sequence[Piece], last: bool, reason: FinishReason) -> ParsedDelta:
    delta = TextDelta(0, "x", (1,), finish_reason=reason, usage=Usage(3, 1)) if last else TextDelta(0, "x", (1,))
    return ParsedDelta(0, delta, pieces, finish_reason=reason.value if last else None)


def streamed(portions: Sequence[Sequence[Piece]], reason: FinishReason = FinishReason.STOP) -> list[dict]:
    formatter = new_formatter()
    data = formatter.start()
    for number, pieces in enumerate(portions):
        data += formatter.events(output(pieces, number == len(portions) - 1, reason))
    return sse.events((data + formatter.end(usage())).decode())


def whole(portions: Sequence[Sequence[Piece]], reason: FinishReason = FinishReason.STOP) -> dict:
    together = [piece for portion in portions for piece in portion]
    return orjson.loads(new_formatter().body([output(together, True, reason)], usage()))


def added_up(events: list[dict]) -> list[dict]:
    """The items as a client assembles them from `added` events and deltas alone."""
    items: dict[int, dict[str, Any]] = {}
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items[event["output_index"]] = orjson.loads(orjson.dumps(event["item"]))
            case "content_part.added":
                items[event["output_index"]]["content"].append(dict(event["part"]))
            case "output_text.delta" | "reasoning_text.delta":
                items[event["output_index"]]["content"][event["content_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
            case "output_item.done":
                items[event["output_index"]]["status"] = event["item"]["status"]
    return list(items.values())


texts = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3)


@st.composite
def spoken(draw) -> list[list[Piece]]:
    """Anything that readers may say, cut into portions anywhere."""
    pieces: list[Piece] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("trc"), max_size=5)):
        if kind == "c":
            pieces.append(CallBegun(calls, f"call_{calls}", draw(st.sampled_from(["add", "web__look_up"]))))
            pieces += [CallArguments(calls, text) for text in draw(texts)]
            calls += 1
        else:
            pieces += [(Text if kind == "t" else Reasoning)(text) for text in draw(texts)]
    cuts = sorted(draw(st.lists(st.integers(0, len(pieces)), max_size=6)))
    return [pieces[start:end] for start, end in zip([0, *cuts], [*cuts, len(pieces)], strict=True)]


@QUICK
@given(spoken(), st.sampled_from(FinishReason))
def test_events_add_up_to_the_whole_answer(portions, reason):
    events, response = streamed(portions, reason), whole(portions, reason)
    assert added_up(events) == response["output"]
    assert events[-1]["response"] | {"completed_at": 0} == response | {"completed_at": 0}
    assert events[-1]["type"] == f"response.{response['status']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@QUICK
@given(spoken())
def test_every_item_ends_before_the_next_begins(portions):
    open_item = None
    for event in streamed(portions):
        match event["type"]:
            case "response.output_item.added":
                assert open_item is None
                open_item = event["item"]["id"]
            case "response.output_item.done":
                assert open_item == event["item"]["id"]
                open_item = None
            case _ if "item_id" in event:
                assert event["item_id"] == open_item
    assert open_item is None


@QUICK
@given(spoken())
def test_the_clients_own_accumulator_ends_with_the_whole_answer(portions):
    state = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
    for event in streamed(portions):
        for seen in state.handle_event(EVENT.validate_python(event)):
            last = seen
    assert last.type == "response.completed"
    items = [item.to_dict() for item in last.response.output]
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content", []):
            part.pop("parsed", None)
    assert items == whole(portions)["output"]


def test_what_is_said_becomes_items_in_its_order():
    portions = [
        [Reasoning("hm"), Text("I")],
        [Text(" add"), CallBegun(0, "call_a", "add"), CallArguments(0, '{"a"')],
        [CallArguments(0, ":1}"), CallBegun(1, "call_b", "add"), CallArguments(1, "{}")],
    ]
    output = whole(portions)["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert output[1]["content"][0]["text"] == "I add"
    assert [(call["call_id"], call["name"], call["arguments"]) for call in output[2:]] == [
        ("call_a", "add", '{"a":1}'),
        ("call_b", "add", "{}"),
    ]
    assert len({item["id"] for item in output}) == 4


def test_a_call_in_a_namespace_is_spelt_with_it():
    portions = [[CallBegun(0, "call_a", "web__look_up"), CallArguments(0, "{}")]]
    [call] = whole(portions)["output"]
    assert (call["namespace"], call["name"]) == ("web", "look_up")


def test_only_what_was_said_last_is_cut_off():
    portions = [[Text("I add"), CallBegun(0, "call_a", "add"), CallArguments(0, '{"a')]]
    response = whole(portions, FinishReason.LENGTH)
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["status"] == "incomplete"


@pytest.mark.parametrize("reason", list(FinishReason))
def test_an_answer_of_nothing_has_an_empty_message(reason):
    [message] = whole([[]], reason)["output"]
    assert message["content"][0]["text"] == ""
