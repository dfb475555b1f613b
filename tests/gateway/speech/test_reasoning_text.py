"""Reasoning in text: a span at the beginning, between the markers of the model."""

import pytest

from engine.text.dialect import CallForm, Markers
from gateway.speech.pieces import ParsedMessage, Reasoning, Text
from tests.gateway.speech.reading import CALL, OSLO, called, gemma_call, pieces_of, reader, spoken, thinking


@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        (False, "<think>\nso\n</think>\n\nyes", ParsedMessage("yes", "so")),
        (False, "\n<think>so</think>", ParsedMessage(None, "so")),
        (False, "<think>so", ParsedMessage(None, "so")),
        (False, "yes <think>so</think>", ParsedMessage("yes <think>so</think>")),
        (False, "<thi", ParsedMessage("<thi")),
        (False, "<think></think>yes", ParsedMessage("yes")),
        (True, "\nso it\n\nis </thin", ParsedMessage(None, "so it\n\nis </thin")),
        (True, "so</think>yes </think>", ParsedMessage("yes </think>", "so")),
        (True, f"so</think>\n\n<tool_call>{CALL}</tool_call>", ParsedMessage(None, "so", called(OSLO).calls)),
        (True, f"so <tool_call>{CALL}</tool_call>", ParsedMessage(None, f"so <tool_call>{CALL}</tool_call>")),
    ],
)
def test_reasoning_is_a_span_at_the_beginning(opened, text, expected):
    for parts in ([text], list(text)):
        assert spoken(thinking(opened, reader(CallForm.HERMES)), *parts) == expected


@pytest.mark.parametrize(
    ("opened", "text", "expected"),
    [
        (False, "<|channel>thought\nso\n<channel|>yes", ParsedMessage("yes", "so")),
        (False, "<|channel>thought\n<channel|>yes", ParsedMessage("yes")),
        (False, "<|channel>thought<channel|>yes", ParsedMessage("yes")),
        (False, "<|channel>though<channel|>yes", ParsedMessage("yes", "though")),
        (False, "<|channel>", ParsedMessage()),
        (False, "<|channel>tho", ParsedMessage(None, "tho")),
        (False, "<|channel>thought", ParsedMessage()),
        (False, "<|channel>thoughtful", ParsedMessage(None, "ful")),
        (False, "<|channel>\nthought\nthought", ParsedMessage(None, "thought")),
        (True, "thought of it<channel|>yes", ParsedMessage("yes", "thought of it")),
        (
            False,
            "<|channel>thought\nso\n<channel|>" + gemma_call("weather", {"city": "Oslo"}),
            ParsedMessage(None, "so", called(OSLO).calls),
        ),
    ],
)
def test_the_label_of_a_channel_is_no_reasoning(opened, text, expected):
    channel = Markers("<|channel>", "<channel|>", "thought")
    for parts in ([text], list(text)):
        assert spoken(thinking(opened, reader(CallForm.GEMMA), channel), *parts) == expected


def test_reasoning_comes_out_at_once():
    parts = ["so ", "it", " </thi", "nk>\n", "\nyes", ""]
    assert pieces_of(thinking(True, reader(CallForm.HERMES)), parts) == [
        [Reasoning("so")],
        [Reasoning(" it")],
        [],
        [],
        [Text("yes")],
        [],
    ]
