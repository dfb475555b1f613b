"""What is promised of reading an answer."""

from engine.request import FinishReason, TextDelta
from gateway.speech.pieces import Call, CallArguments, CallBegun, Piece, Reasoning, Spoken, Text
from gateway.speech.speech import Speech


def test_without_a_reader_all_is_text() -> None:
    speech = Speech()
    assert speech.read(0, TextDelta(0, "a")) == [Text("a")]
    assert speech.read(0, TextDelta(0, "")) == []
    assert speech.finish_reason(0, FinishReason.STOP) == "stop"


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
    assert Spoken.of(pieces) == Spoken("Let me look.", "so it is", calls)
    assert Spoken.of([]) == Spoken(None, None, [])


def test_only_a_choice_that_called_and_was_not_cut_ends_with_tool_calls() -> None:
    class Caller:
        def read(self, delta: TextDelta) -> list[Piece]:
            return [CallBegun(0, "call_a", "weather")] if delta.index else []

    speech = Speech(lambda choice: Caller())
    for choice in (0, 1):
        speech.read(choice, TextDelta(choice, "x"))
    assert speech.finish_reason(0, FinishReason.STOP) == "stop"
    assert speech.finish_reason(1, FinishReason.STOP) == "tool_calls"
    assert speech.finish_reason(1, FinishReason.LENGTH) == "length"
