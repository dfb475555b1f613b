"""Promises of parsing an answer."""

from engine.request import FinishReason, TextDelta
from gateway.speech.output_parser import ChoiceParser, OutputParser, ParsedDelta
from gateway.speech.pieces import Call, CallArguments, CallBegun, ParsedMessage, Piece, Reasoning, Text


def test_without_a_reader_all_is_text() -> None:
    parser = OutputParser()
    assert parser.parse(0, TextDelta(0, "a")).pieces == [Text("a")]
    last = parser.parse(0, TextDelta(0, "", finish_reason=FinishReason.STOP))
    assert (last.pieces, last.finish_reason) == ([], "stop")


def test_pieces_make_a_whole_answer() -> None:
    pieces: list[Piece] = [
        Reasoning("so"),
        Text("Let me "),
        Reasoning(" it is"),
        Text("look."),
        CallBegun(0, "call_a", "weather"),
        CallArguments(0, '{"city":'),
        CallBegun(1, "call_b", "time"),
        CallArguments(1, "{}"),
        CallArguments(0, '"Paris"}'),
    ]
    calls = [Call("call_a", "weather", '{"city":"Paris"}'), Call("call_b", "time", "{}")]
    assert ParsedMessage.of(pieces) == ParsedMessage("Let me look.", "so it is", calls)
    assert ParsedMessage.of([]) == ParsedMessage(None, None, [])


def test_only_a_choice_that_called_and_was_not_cut_ends_with_tool_calls() -> None:
    class Caller:
        def read(self, delta: TextDelta) -> list[Piece]:
            return [CallBegun(0, "call_a", "weather")] if delta.index else []

    def ended(choice: int, reason: FinishReason) -> str | None:
        parser = OutputParser(lambda choice: ChoiceParser(Caller()))
        assert parser.parse(choice, TextDelta(choice, "x")).finish_reason is None
        return parser.parse(choice, TextDelta(choice, finish_reason=reason)).finish_reason

    assert ended(0, FinishReason.STOP) == "stop"
    assert ended(1, FinishReason.STOP) == "tool_calls"
    assert ended(1, FinishReason.LENGTH) == "length"


def test_joined_deltas_are_the_whole_answer() -> None:
    parts = [
        ParsedDelta(1, TextDelta(1, "<think>a", (1, 2), cached_tokens=4), [Reasoning("a")], 2),
        ParsedDelta(1, TextDelta(1, "</think>b", (3, 4), cached_tokens=4), [Text("b")], 1),
        ParsedDelta(1, TextDelta(1, "", (), finish_reason=FinishReason.STOP, cached_tokens=4), [], 0, "stop"),
    ]
    delta = TextDelta(1, "<think>a</think>b", (1, 2, 3, 4), finish_reason=FinishReason.STOP, cached_tokens=4)
    assert ParsedDelta.joined(parts) == ParsedDelta(1, delta, [Reasoning("a"), Text("b")], 3, "stop")
