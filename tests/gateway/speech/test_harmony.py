"""Answers in channels: reasoning, text and calls, however the text is cut, and markers that are only spelled."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import FinishReason, TextDelta
from engine.text.dialect import CHANNEL_MARKERS
from gateway.speech.harmony import ChannelTracker, HarmonyReader
from gateway.speech.output_parser import ChoiceParser, OutputParser
from gateway.speech.pieces import Call, ParsedMessage

WORDS = [
    *CHANNEL_MARKERS,
    "assistant",
    "analysis",
    "commentary",
    "final",
    " to=",
    "functions.",
    "weather",
    "json",
    '{"city":',
    '"Paris"}',
    "Let me",
    " think",
    "It is",
    " warm.",
    "<|en",
    "d|>",
    " ",
    "to=",
    "python",
]
IDS = {word: index for index, word in enumerate(WORDS)}
MARKER_IDS = {marker: IDS[marker] for marker in CHANNEL_MARKERS}
ANALYSIS = ["<|channel|>", "analysis", "<|message|>", "Let me", " think", "<|end|>"]
FINAL = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "It is", " warm."]
CALL = ["<|channel|>", "commentary", " to=", "functions.", "weather", " ", "<|constrain|>", "json", "<|message|>"]
ARGUMENTS = ['{"city":', '"Paris"}']
NEXT = ["<|start|>", "assistant"]
THOUGHT, ANSWER = "Let me think", "It is warm."
CALLED = [Call("call_0", "weather", '{"city":"Paris"}')]


def parsed(
    words: list[str], *, names: tuple[str, ...] = ("weather",), most: int | None = None, one_by_one: bool = True
) -> tuple[ParsedMessage, int, str | None]:
    """(message, reasoning tokens, finish reason) of an answer that ends with a stop token outside its text."""

    def parser(choice: int) -> ChoiceParser:
        tracker = ChannelTracker(MARKER_IDS, lambda token: WORDS[token].encode())
        return ChoiceParser(HarmonyReader(tracker, names, most, lambda index: f"call_{index}"), tracker)

    parts = [[word] for word in words] if one_by_one else [words]
    deltas = [TextDelta(0, "".join(part), tuple(IDS[word] for word in part)) for part in parts]
    output = OutputParser(parser)
    found = [output.parse(0, delta) for delta in (*deltas, TextDelta(0, "", finish_reason=FinishReason.STOP))]
    message = ParsedMessage.of(piece for part in found for piece in part.pieces)
    return message, sum(part.reasoning_tokens for part in found), found[-1].finish_reason


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(
    ("words", "expected", "tokens", "reason"),
    [
        (FINAL[2:], ParsedMessage(ANSWER), 0, "stop"),
        (ANALYSIS + FINAL, ParsedMessage(ANSWER, THOUGHT), 6, "stop"),
        (ANALYSIS + NEXT + CALL + ARGUMENTS, ParsedMessage(None, THOUGHT, CALLED), 6, "tool_calls"),
        # The recipient may precede the channel.
        (
            [" to=", "functions.", "weather", "<|channel|>", "commentary", "<|message|>", *ARGUMENTS],
            ParsedMessage(None, None, CALLED),
            0,
            "tool_calls",
        ),
        # A preamble to the user, more reasoning, and then the call.
        (
            [
                "<|channel|>",
                "commentary",
                "<|message|>",
                "It is",
                "<|end|>",
                *NEXT,
                *ANALYSIS,
                *NEXT,
                *CALL,
                *ARGUMENTS,
            ],
            ParsedMessage("It is", THOUGHT, CALLED),
            8,
            "tool_calls",
        ),
        # Cut off: within the header, the reasoning, and the arguments.
        (["<|channel|>", "analysis"], ParsedMessage(), 0, "stop"),
        (ANALYSIS[:4], ParsedMessage(None, "Let me"), 4, "stop"),
        (CALL + ARGUMENTS[:1], ParsedMessage(None, None, [Call("call_0", "weather", '{"city":')]), 0, "tool_calls"),
        # A call in the analysis channel is of a built-in tool: reasoning.
        (
            ["<|channel|>", "analysis", " to=", "python", "<|message|>", "Let me"],
            ParsedMessage(None, "Let me"),
            6,
            "stop",
        ),
        # Without channels: text.
        (["It is", " warm."], ParsedMessage(ANSWER), 0, "stop"),
        (['{"city":', '"Paris"}'], ParsedMessage('{"city":"Paris"}'), 0, "stop"),
        # Markers that are not tokens of their own.
        (
            ["<|channel|>", "analysis", "<|message|>", "Let me", "<|en", "d|>", " think", "<|end|>", *FINAL],
            ParsedMessage(ANSWER, "Let me<|end|> think"),
            8,
            "stop",
        ),
        (["<|channel|>", "final", "<|message|>", "<|en"], ParsedMessage("<|en"), 0, "stop"),
        (["<|channel|>", "final", "<|message|>", "<|en", " "], ParsedMessage("<|en "), 0, "stop"),
    ],
)
def test_an_answer(words: list[str], expected: ParsedMessage, tokens: int, reason: str, one_by_one: bool) -> None:
    assert parsed(words, one_by_one=one_by_one) == (expected, tokens, reason)


def test_a_call_of_an_undeclared_tool_is_text() -> None:
    message, _, reason = parsed(CALL + ARGUMENTS, names=("time",))
    assert (message.text, message.calls, reason) == ('to=functions.weather {"city":"Paris"}', [], "stop")


def test_calls_past_the_limit_are_dropped() -> None:
    twice = [*CALL, *ARGUMENTS, "<|call|>", *NEXT, *CALL, *ARGUMENTS]
    assert len(parsed(twice)[0].calls) == 2
    assert parsed(twice, most=1)[0] == ParsedMessage(None, None, CALLED)


@settings(deadline=None, max_examples=200)
@given(words=st.lists(st.sampled_from(WORDS), max_size=16), data=st.data())
def test_no_cut_of_the_text_changes_the_answer(words: list[str], data: st.DataObject) -> None:
    whole = parsed(words, one_by_one=False)
    assert parsed(words) == whole
    # Text that lags behind its tokens, in pieces of any length.
    text = "".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)) | {0, len(text)})
    tracker = ChannelTracker(MARKER_IDS, lambda token: WORDS[token].encode())
    reader = HarmonyReader(tracker, ("weather",), None, lambda index: f"call_{index}")
    tracker.add([IDS[word] for word in words])
    pieces = [piece for at, to in itertools.pairwise(cuts) for piece in reader.read(TextDelta(0, text[at:to]))]
    pieces += reader.read(TextDelta(0, "", finish_reason=FinishReason.STOP))
    assert ParsedMessage.of(pieces) == whole[0]
