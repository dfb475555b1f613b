"""Where reasoning ends is decided once: for its text, the count of its tokens, and the grammar of what follows."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.grammar.after_reasoning import AfterReasoning
from engine.request import FinishReason, TextDelta
from engine.text.reasoning_span import ReasoningTracker, SpanState
from gateway.speech.output_parser import ChoiceParser, OutputParser, PlainReader
from gateway.speech.pieces import ParsedMessage
from gateway.speech.reasoning import ReasoningReader

WORDS = [
    b"<think>",
    b"</think>",
    b"<",
    b"/think",
    b">",
    b"</thi",
    b"nk>\n",
    b"think>",
    b" ",
    b"\n",
    b"a",
    b"\xc3",
    b"\xa4",
]
BEGIN_ID, END_ID = 0, 1
SPELLED = (WORDS.index(b"</thi"), WORDS.index(b"nk>\n"))
"""The end marker in other tokens than its own."""
tokens_of = st.lists(st.integers(0, len(WORDS) - 1), max_size=12)


def tracker(*, opened: bool, ids: tuple[int, int] | None = None) -> ReasoningTracker:
    return ReasoningTracker("<think>", "</think>", ids, WORDS.__getitem__, opened=opened)


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
    assert tracker(opened=opened).add(ids(*words)) == expected


def test_where_the_markers_are_tokens_their_characters_in_other_tokens_are_text():
    tracked = tracker(opened=False, ids=(BEGIN_ID, END_ID))
    assert tracked.add([BEGIN_ID, *SPELLED]) == 3
    assert tracked.state is SpanState.INSIDE
    assert tracked.add([END_ID, *SPELLED]) == 1
    assert (tracked.state, tracked.spelled_ends) == (SpanState.AFTER, 1)
    assert tracker(opened=False, ids=(BEGIN_ID, END_ID)).add(ids(b"<", b"think>", b"a", b"</think>")) == 0


@settings(max_examples=200, deadline=None)
@given(st.booleans(), st.booleans(), tokens_of, st.data())
def test_however_they_come(opened, marked, tokens, data):
    marker_ids = (BEGIN_ID, END_ID) if marked else None
    places = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    tracked = tracker(opened=opened, ids=marker_ids)
    parts = [tracked.add(tokens[a:b]) for a, b in itertools.pairwise([0, *places, len(tokens)])]
    assert sum(parts) == tracker(opened=opened, ids=marker_ids).add(tokens)


class Everything:
    """A grammar that allows every token."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    @property
    def taken(self) -> int:
        return len(self.accepted)

    def accept(self, tokens):
        self.accepted += tokens
        return len(tokens)

    def rollback(self, tokens):
        del self.accepted[len(self.accepted) - tokens :]

    def fill_bitmask(self, bitmask):
        bitmask.fill(-1)


def text_of(tokens: list[int]) -> str:
    return b"".join(WORDS[token] for token in tokens).decode("utf-8", "replace")


@settings(max_examples=400, deadline=None)
@given(st.booleans(), tokens_of, st.data())
@example(True, [WORDS.index(b"a"), *SPELLED, WORDS.index(b"a"), END_ID, WORDS.index(b"a")], None)
@example(False, [BEGIN_ID, END_ID, END_ID], None)
def test_text_count_and_grammar_agree_where_reasoning_ends(opened, tokens, data):
    """The grammar holds exactly the tokens whose text the client is given as content, and the others are counted."""
    if not opened and tokens and tokens[0] != BEGIN_ID and not WORDS[tokens[0]].strip():
        return  # a grammar has no span behind white space: its own first token is no marker
    grammar = Everything()
    matcher = AfterReasoning(grammar, begin_id=BEGIN_ID, end_id=END_ID, begun=opened, eos_token_ids=())
    matcher.fill_bitmask(np.zeros(1, np.int32))
    assert matcher.accept(tokens) == len(tokens)

    tracked = tracker(opened=opened, ids=(BEGIN_ID, END_ID))
    parser = OutputParser(lambda choice: ChoiceParser(ReasoningReader(tracked, PlainReader()), tracked))
    count, pieces = 0, []
    places = [] if data is None else sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    sent = ""
    for start, end in itertools.pairwise([0, *places, len(tokens)]):
        whole, ended = text_of(tokens[:end]), end == len(tokens)
        held = 0 if ended else len(whole) - len(whole.rstrip("\ufffd"))  # text lags behind an incomplete character
        text = whole[len(sent) : len(whole) - held]
        sent += text
        finish = FinishReason.STOP if ended and (start, end) == (([0, *places, len(tokens)])[-2], end) else None
        parsed = parser.parse(0, TextDelta(0, text, tuple(tokens[start:end]), finish_reason=finish))
        count += parsed.reasoning_tokens
        pieces += parsed.pieces
    content = ParsedMessage.of(pieces).text or ""
    assert count == len(tokens) - len(grammar.accepted)
    expected = text_of(grammar.accepted)
    assert content == (expected.lstrip() if count else expected)
