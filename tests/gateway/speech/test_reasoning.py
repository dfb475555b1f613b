"""Counting what a model says to itself, token by token."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.dialect import Markers
from gateway.speech.reasoning import ReasoningCount, ReasoningTally

THINK = Markers("<think>", "</think>")
WORDS = [b"<think>", b"</think>", b"<", b"/think", b">", b"</thi", b"nk>\n", b"think>", b" ", b"\n", b"a", b"\xc3"]


def count(opened: bool) -> ReasoningCount:
    return ReasoningCount(THINK, opened, WORDS.__getitem__)


def ids(*words: bytes) -> list[int]:
    return [WORDS.index(word) for word in words]


@pytest.mark.parametrize(
    ("opened", "words", "expected"),
    [
        (False, [b"<think>", b"a", b"</think>", b"a"], 3),
        (False, [b"\n", b"<think>", b"a"], 2),
        (False, [b"<", b"think>", b"a", b"</thi", b"nk>\n", b"a"], 5),
        (False, [b"a", b"<think>", b"</think>"], 0),
        (False, [b"<", b"a", b"<think>"], 0),
        (False, [b"<"], 0),
        (True, [b"a", b"\xc3", b"</think>", b"a", b"</think>"], 3),
        (True, [b"a", b"<", b"/think", b"a"], 4),
        (True, [b"</think>", b"<think>"], 1),
    ],
)
def test_the_tokens_of_the_span_count(opened, words, expected):
    assert count(opened).count(ids(*words)) == expected


@settings(max_examples=200)
@given(st.booleans(), st.lists(st.integers(0, len(WORDS) - 1), max_size=12), st.data())
def test_however_they_come(opened, tokens, data):
    places = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    counter = count(opened)
    parts = [counter.count(tokens[a:b]) for a, b in itertools.pairwise([0, *places, len(tokens)])]
    assert sum(parts) == count(opened).count(tokens)


def test_choices_are_counted_on_their_own():
    tally = ReasoningTally(lambda choice: count(opened=choice == 1))
    assert [tally.count(choice, ids(b"a")) for choice in (0, 1, 0, 1)] == [0, 1, 0, 1]
    assert ReasoningTally(None).count(0, ids(b"<think>")) == 0
