"""Answers as content blocks: Anthropic's own client reads the same from a stream as from a whole message."""

from collections.abc import Sequence

import httpx2
import orjson
import pytest
from anthropic import Anthropic
from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import FinishReason, TextDelta, Usage
from gateway.admission.model import Measure, Scope, ScopeKind
from gateway.formats.anthropic.formatter import MessagesFormatter, Terms, blocks_of
from gateway.generation.response_format import ResponseMeta
from gateway.generation.usage import UsageTotal
from gateway.http.errors import APIError
from gateway.speech.output_parser import ParsedDelta
from gateway.speech.pieces import CallArguments, CallBegun, Piece, Reasoning, Text
from tests.support.sse import events

META = ResponseMeta("msg_1", "tiny", "default")


def parsed(pieces: Sequence[Piece], cuts: Sequence[int], last: TextDelta) -> list[ParsedDelta]:
    """`cuts`: pieces in each delta; the rest is in the last."""
    rest, outputs, called = list(pieces), [], any(isinstance(piece, CallBegun) for piece in pieces)
    for count in cuts:
        outputs.append(ParsedDelta(0, TextDelta(0, cached_tokens=4), rest[:count]))
        rest = rest[count:]
    reason = "tool_calls" if called and last.finish_reason is FinishReason.STOP else last.finish_reason.value
    return [*outputs, ParsedDelta(0, last, rest, finish_reason=reason)]


def formatter_of(*, shows_thinking: bool = True, is_cut: bool = False, stops: Sequence[str] = ("END",)):
    return MessagesFormatter(META, Terms(10, stops, is_cut, shows_thinking))


def ended(reason: FinishReason = FinishReason.STOP, stop: str | int | None = None) -> TextDelta:
    usage = Usage(10, 7, cached_tokens=4)
    return TextDelta(0, finish_reason=reason, stop=stop, usage=usage, cached_tokens=4)


def usage_after(*deltas: TextDelta, bound_by: Scope | None = None) -> UsageTotal:
    usage = UsageTotal([10], 1, bound_by)
    for delta in deltas:
        usage.add(0, delta)
    usage.reasoning_tokens = 3
    return usage


def whole(pieces: Sequence[Piece], last: TextDelta | None = None, *, bound_by: Scope | None = None, **terms) -> dict:
    last = last or ended()
    body = formatter_of(**terms).body(parsed(pieces, (), last), usage_after(last, bound_by=bound_by))
    return orjson.loads(body)


def streamed(pieces: Sequence[Piece], cuts: Sequence[int], last: TextDelta | None = None, **terms) -> bytes:
    last = last or ended()
    outputs = parsed(pieces, cuts, last)
    formatter = formatter_of(**terms)
    said = formatter.start() + b"".join(formatter.events(output) for output in outputs)
    return said + formatter.end(usage_after(*(output.delta for output in outputs)))


def accumulated(stream: bytes) -> Message:
    """The message that Anthropic's client accumulates from a stream."""
    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    transport = httpx2.MockTransport(lambda request: response)
    with (
        Anthropic(api_key="k", base_url="http://x", http_client=httpx2.Client(transport=transport)) as client,
        client.messages.stream(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}]) as helper,
    ):
        return helper.get_final_message()


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def answers(draw) -> list[Piece]:
    """Anything a reader may tell."""
    pieces: list[Piece] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from([Text, Reasoning, CallBegun]), max_size=6)):
        if kind is not CallBegun:
            pieces.append(kind(draw(st.text(min_size=1, max_size=8))))
            continue
        pieces.append(CallBegun(calls, f"call_{calls}", draw(st.sampled_from(["add", "look_up"]))))
        arguments = orjson.dumps(draw(st.dictionaries(st.text(max_size=5), values, max_size=3))).decode()
        cut = draw(st.integers(0, len(arguments)))
        pieces += [CallArguments(calls, part) for part in (arguments[:cut], arguments[cut:]) if part]
        calls += 1
    return pieces


KIND_OF_DELTA = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(answers(), st.lists(st.integers(0, 3), max_size=5))
def test_blocks_come_one_behind_the_other(pieces, cuts):
    start, *said, delta, stop = events(streamed(pieces, cuts).decode())
    assert [each["type"] for each in (start, delta, stop)] == ["message_start", "message_delta", "message_stop"]
    index, kind = -1, None
    for each in said:
        if each["type"] == "content_block_start":
            assert kind is None
            index, kind = index + 1, each["content_block"]["type"]
        elif each["type"] == "content_block_delta":
            assert each["delta"]["type"] == KIND_OF_DELTA[kind]
        else:
            assert (each["type"], kind is None) == ("content_block_stop", False)
            kind = None
        assert each["index"] == index
    assert kind is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(answers(), st.lists(st.integers(0, 3), max_size=5), st.booleans())
def test_streamed_and_whole_are_the_same(pieces, cuts, shows_thinking):
    message = accumulated(streamed(pieces, cuts, shows_thinking=shows_thinking))
    body = whole(pieces, shows_thinking=shows_thinking)
    body["usage"].pop("service_tier")  # said once, at the beginning of a stream
    assert message.usage.service_tier == "standard"
    seen = message.to_dict()
    assert seen["usage"].pop("service_tier")
    assert {name: seen[name] for name in body} == body


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=5), values, max_size=3), st.data())
def test_of_a_call_that_is_cut_short_there_is_what_was_said(arguments, data):
    text = orjson.dumps(arguments).decode()
    part = text[: data.draw(st.integers(1, len(text)))]
    pieces = [CallBegun(0, "c", "add"), CallArguments(0, part)]
    cut = ended(FinishReason.LENGTH)
    [block] = whole(pieces, cut)["content"]
    assert accumulated(streamed(pieces, [], cut)).content[0].input == block["input"]
    assert set(block["input"]) <= set(arguments)


@pytest.mark.parametrize("arguments", ['{"a": 1', '{"a": nope}', "[1]", "7"])
def test_arguments_that_are_no_object_are_not_mended(arguments):
    [block] = blocks_of([CallBegun(0, "c", "f"), CallArguments(0, arguments)], shows_thinking=True, is_whole=True)
    assert block == {"type": "tool_use", "id": "c", "name": "f", "input": {"INVALID_JSON": arguments}}


def test_thinking_that_is_not_shown_leaves_an_empty_block_and_pings():
    pieces = [Reasoning("secret"), Reasoning(" plan"), Text("Hi")]
    assert whole(pieces, shows_thinking=False)["content"] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": "Hi"},
    ]
    stream = streamed(pieces, [1, 1, 1], shows_thinking=False)
    assert b"secret" not in stream
    assert stream.count(b"event: ping\n") == 2


CALLED = [CallBegun(0, "c", "f")]


@pytest.mark.parametrize(
    ("pieces", "last", "terms", "stop"),
    [
        ([], ended(), {}, ("end_turn", None)),
        ([], ended(stop=257), {}, ("end_turn", None)),
        ([], ended(stop="END"), {}, ("stop_sequence", "END")),
        ([], ended(stop="not the client's"), {}, ("end_turn", None)),
        (CALLED, ended(), {}, ("tool_use", None)),
        (CALLED, ended(stop="END"), {}, ("stop_sequence", "END")),
        (CALLED, ended(FinishReason.LENGTH), {}, ("max_tokens", None)),
        ([], ended(FinishReason.LENGTH), {"is_cut": True}, ("model_context_window_exceeded", None)),
        ([], ended(), {"is_cut": True}, ("end_turn", None)),
    ],
)
def test_why_it_ended(pieces, last, terms, stop):
    body = whole(pieces, last, **terms)
    assert (body["stop_reason"], body["stop_sequence"]) == stop
    message = accumulated(streamed(pieces, [], last, **terms))
    assert (message.stop_reason, message.stop_sequence) == stop


def test_a_limits_cut_is_not_the_windows():
    bound_by = Scope("tenant-1", ScopeKind.TENANT, "", Measure.TOKENS_PER_DAY)
    assert whole([], ended(FinishReason.LENGTH), is_cut=True, bound_by=bound_by)["stop_reason"] == "max_tokens"


def test_a_failure_is_an_event_of_its_own():
    event = formatter_of().failure(APIError(503, "Retry.", code="service_unavailable"))
    assert event == (b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"Retry."}}\n\n')
