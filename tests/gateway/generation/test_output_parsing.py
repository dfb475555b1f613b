"""The parser of an answer follows the dialect of its model, and what the request allows."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.grammar import GrammarSpec
from engine.request import FinishReason, TextDelta
from engine.text.dialect import CHANNEL_MARKERS, CallForm, Dialect
from gateway.generation.output_parsing import output_parser
from gateway.generation.request import Conversation
from gateway.speech.pieces import ParsedMessage
from gateway.speech.tools import Tool, ToolChoice, ToolUse

WEATHER = Tool("weather", None, {"properties": {"city": {"type": "string"}}})
IN_CHANNELS = (
    *(
        "<|channel|>",
        "analysis",
        "<|message|>",
        "So.",
        "<|end|>",
        "<|start|>",
        "assistant",
        "<|channel|>",
        "commentary",
    ),
    *(" to=functions.weather ", "<|constrain|>", "json", "<|message|>", '{"city": "Oslo"}'),
)
CALL = ("weather", '{"city": "Oslo"}')


def message(
    form: CallForm, words: tuple[str, ...], choice: ToolChoice = ToolChoice.AUTO, grammar: GrammarSpec | None = None
) -> tuple[ParsedMessage, int]:
    """An answer whose words are tokens, and the number of tokens that are reasoning."""
    vocabulary = [*CHANNEL_MARKERS, *words]
    tokenizer = SimpleNamespace(
        special_texts={marker: index for index, marker in enumerate(CHANNEL_MARKERS)},
        token_bytes=lambda token: vocabulary[token].encode(),
    )
    text = SimpleNamespace(tokenizer=tokenizer, dialect=Dialect(knows_tools=True, call_form=form))
    use = ToolUse((WEATHER,), choice)
    request = SimpleNamespace(prompts=[Conversation(messages=())], tools=use, params=SimpleNamespace(n=1))
    prompt = SimpleNamespace(token_ids=(), params=SimpleNamespace(grammar=grammar))
    parser = output_parser("id", cast(Any, request), cast(Any, SimpleNamespace(text=text)), cast(Any, [prompt]))
    deltas = [TextDelta(0, word, (vocabulary.index(word),)) for word in words]
    parts = [parser.parse(0, delta) for delta in (*deltas, TextDelta(0, "", finish_reason=FinishReason.STOP))]
    pieces = [piece for part in parts for piece in part.pieces]
    return ParsedMessage.of(pieces), sum(part.reasoning_tokens for part in parts)


def calls_of(answer: ParsedMessage) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in answer.calls]


def test_channels() -> None:
    answer, tokens = message(CallForm.HARMONY, IN_CHANNELS)
    assert (answer.reasoning, answer.text, calls_of(answer), tokens) == ("So.", None, [CALL], 5)


def test_without_tools_a_call_in_a_channel_is_text() -> None:
    answer, _ = message(CallForm.HARMONY, IN_CHANNELS, ToolChoice.NONE)
    assert (answer.text, answer.calls) == ('to=functions.weather {"city": "Oslo"}', [])


@pytest.mark.parametrize("choice", [ToolChoice.AUTO, ToolChoice.NONE])
def test_an_answer_that_a_grammar_holds_has_no_channels(choice: ToolChoice) -> None:
    answer, tokens = message(CallForm.HARMONY, ('{"a": 1}',), choice, GrammarSpec.json_schema({}, "response_format"))
    assert (answer, tokens) == (ParsedMessage('{"a": 1}'), 0)


def test_a_forced_call_has_no_channels() -> None:
    grammar = GrammarSpec.json_schema({}, "tool_choice")
    written = ('[{"name": "weather", "arguments": {"city": "Oslo"}}]',)
    answer, _ = message(CallForm.HARMONY, written, ToolChoice.REQUIRED, grammar)
    assert calls_of(answer) == [CALL]


def test_values_between_tags_follow_the_tools_schema() -> None:
    words = ("<tool_call>weather<arg_key>city</arg_key><arg_value>12</arg_value></tool_call>",)
    assert calls_of(message(CallForm.GLM, words)[0]) == [("weather", '{"city": "12"}')]
